"""Summary of a run from its manifest, for the list of runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from chop.base.tables import printable
from chop.report.command_line import command_line
from chop.runs import Manifest, Outcome

CONTINUED = ("sweep ", "search ", "evaluate")
"""Prefixes of resumable commands."""


@dataclass(frozen=True)
class RunEntry:
    """Entry of the list of runs.

    Attributes:
        path: path of its folder, relative to the folder of the list.
        kind: kind of command.
        state: `running`, `finished`, `failed`, `interrupted`, or `broken`.
        model: model of the run, "" if the settings name none.
        started: start time in UTC, ISO 8601.
        ended: end time in UTC, ISO 8601. "" while it runs.
        error: error of the run, or the reason why its manifest is unreadable.
        data: data of the run, "" if neither results nor settings name any.
        outcome: its key numbers. None before it finishes, and for jobs without an outcome.
        command: command line, or "".
        again: command line that resumes or restarts an interrupted run.
    """

    path: str
    kind: str
    state: str
    model: str = ""
    started: str = ""
    ended: str = ""
    error: str = ""
    data: str = ""
    outcome: Outcome | None = None
    command: str = ""
    again: str = ""

    @property
    def goes_on(self) -> bool:
        """True if `again` resumes the run. Other commands start from the beginning."""
        return self.kind.startswith(CONTINUED)


def summarize_run(path: str, folder: Path, manifest: Manifest) -> RunEntry:
    """Summarizes a run from its manifest.

    Args:
        path: path of its folder, relative to the folder of the list.
        folder: full path of its folder.
        manifest: manifest of the run.
    """
    outcome, command = manifest.outcome, command_line(manifest.command)
    named = manifest.settings.get("dataset")
    data = (outcome.data if outcome else "") or (named if isinstance(named, str) else "")
    model = manifest.settings.get("model") or manifest.settings.get("compressed")
    return RunEntry(
        path,
        manifest.kind,
        manifest.state,
        model if isinstance(model, str) else "",
        manifest.started,
        manifest.ended or "",
        _error(manifest),
        data,
        outcome,
        command,
        _again(manifest, command, folder) if manifest.state == "interrupted" else "",
    )


def _error(manifest: Manifest) -> str:
    """Returns the error of a failed run. Interruptions by a person are not errors."""
    error = manifest.error or ""
    return "" if error.startswith(("KeyboardInterrupt", "Terminated")) else error


def _again(manifest: Manifest, command: str, folder: Path) -> str:
    """Returns the command that resumes a run; searches are resumed by their folder."""
    is_search = manifest.kind in ("search precision", "search nas", "search shape")
    if is_search and not manifest.settings.get("storage"):
        return f"chop search resume {shlex.quote(printable(str(folder)))}"
    return command
