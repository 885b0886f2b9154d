"""Description of a run: contents of the output folder, and commands that continue from it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.actions.compress.earlier_run import WEIGHTS
from chop.base.files import latest
from chop.base.files.documents import read_json
from chop.base.tables import printable
from chop.base.trust import confirmation
from chop.errors import ChopError
from chop.report.page.page import PAGE
from chop.report.report import say
from chop.runs import Manifest, read_manifest

REPORT = "report.json"
WITH_MODEL = ("chop evaluate {run}", "chop bench model {run}", "chop export {run} --to onnx")
"""Commands that continue from a saved model."""


@dataclass(frozen=True)
class _DescribedRun:
    """Description of the contents of a run folder.

    Attributes:
        kind: command that wrote it.
        state: state of the last run: running, finished, failed or interrupted.
        settings: model and data, by name.
        verdict: the outcome in one sentence, or "".
        files: files of the last finished run, with their sizes in bytes.
        next: shell commands that continue from the folder.
    """

    kind: str
    state: str
    settings: Mapping[str, Any]
    verdict: str
    files: Mapping[str, int]
    next: tuple[str, ...]


def describe_run(folder: str | Path) -> _DescribedRun:
    """Prints the contents of a command's output folder.

    Args:
        folder: output folder of a run, which may still be running or have failed.
    Raises:
        CheckpointError: if it is not the folder of a run, or cannot be read.
    """
    folder = Path(folder).expanduser()
    manifest = read_manifest(folder)
    description = _described(folder, manifest)
    subject = " on ".join(
        str(value) for value in description.settings.values() if value is not None
    )
    say(
        printable(
            f"{folder}: chop {description.kind}{subject and f', {subject}'}; {description.state}."
        )
    )
    if manifest.error:
        say(printable(manifest.error))
    if description.verdict:
        say(printable(description.verdict))
    if description.files:
        say(printable(f"Files: {', '.join(description.files)}."))
    for command in description.next:
        say(f"  {printable(command)}", is_whole=True)
    return description


def _described(folder: Path, manifest: Manifest) -> _DescribedRun:
    results = manifest.results
    files = {} if results is None else {e.path: e.size_bytes for e in results.artifacts}
    verdict = ""
    if results is not None:
        with suppress(ChopError, OSError, ValueError):
            verdict = str(read_json(latest(folder / REPORT), "result").get("verdict") or "")
    return _DescribedRun(
        manifest.kind,
        manifest.state,
        {name: manifest.settings.get(name) for name in ("model", "dataset")},
        verdict,
        files,
        tuple(_next(folder, manifest, files)),
    )


def _next(folder: Path, manifest: Manifest, files: Mapping[str, int]) -> Iterator[str]:
    # A name that begins with a dash would be read as an option.
    name = str(folder) if not str(folder).startswith("-") else f"./{folder}"
    run, more = shlex.quote(name), confirmation(str(manifest.settings.get("model")))
    if manifest.kind == "compress" and WEIGHTS in files:
        yield from (f"{command.format(run=run)}{more}" for command in WITH_MODEL)
    if manifest.kind == "sweep quantize" and files:
        yield f"chop sweep prune {run}{more}"
    if PAGE in files:
        yield f"chop report {run} --open"
