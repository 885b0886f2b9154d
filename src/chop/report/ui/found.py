"""Summary of a run's manifest for the list of runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from chop.base.tables import printable
from chop.report.command_line import command_line
from chop.runs import Manifest, Outcome

CONTINUED = ("sweep ", "search ", "evaluate")
"""Kinds of commands that go on where they stopped, or begin of these."""


@dataclass(frozen=True)
class FoundRun:
    """A run in a list.

    Attributes:
        path: path of its folder, relative to the folder of the list.
        kind: kind of command.
        state: `running`, `finished`, `failed`, `interrupted`, or `broken`.
        model: model of the run, "" if the settings name none.
        started: in UTC, ISO 8601.
        ended: the same; "" while it runs.
        error: error of the run, or the reason why it cannot be read.
        data: data of the run, "" if neither results nor settings name any.
        outcome: its numbers; None before it is finished, and of jobs without.
        command: its command line; "" where there is none.
        again: the command line that goes on, or starts again, after it was interrupted.
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
        """True if `again` continues the run. Other commands start from the beginning."""
        return self.kind.startswith(CONTINUED)


def found_run(path: str, folder: Path, manifest: Manifest) -> FoundRun:
    """Summarizes a run from its manifest.

    Args:
        path: path of its folder, relative to the folder of the list.
        folder: the same in full.
        manifest: manifest of the run.
    """
    outcome, command = manifest.outcome, command_line(manifest.command)
    named = manifest.settings.get("dataset")
    data = (outcome.data if outcome else "") or (named if isinstance(named, str) else "")
    model = manifest.settings.get("model")
    return FoundRun(
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
    """Returns the error of a failed run. Interruptions by a person are in the state."""
    error = manifest.error or ""
    return "" if error.startswith(("KeyboardInterrupt", "Terminated")) else error


def _again(manifest: Manifest, command: str, folder: Path) -> str:
    """A search is found by its folder, from anywhere; other commands are those that ran."""
    is_search = manifest.kind in ("search precision", "search nas")
    if is_search and not manifest.settings.get("storage"):
        return f"chop search resume {shlex.quote(printable(str(folder)))}"
    return command
