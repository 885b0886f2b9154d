"""Manifest of a run: what was run, with which settings, on what, and what came of it.

A run writes `manifest.json` into its output folder when it starts and again when it ends. Reports
and other jobs read it by `read_manifest`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from chop.base.files import latest, recover_folder, shared_lock
from chop.base.files.documents import read_json
from chop.base.files.reading import open_regular
from chop.base.files.writers import TooLargeError, write_json
from chop.base.notices import warn_each_time
from chop.config import parse
from chop.errors import CheckpointError, ConfigError, shorten
from chop.runs.outcome import Outcome
from chop.runs.process import process_status
from chop.runs.serialization import as_json

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of the file's format."""
LONGEST_ERROR = 10_000
"""Characters of an error, where the manifest is too large."""

State = Literal["running", "finished", "failed", "interrupted"]


@dataclass(frozen=True)
class Artifact:
    """A file that a run wrote.

    Attributes:
        path: below the output folder, with `/` between folders.
        size_bytes: of the file.
        sha256: digest of its content, in hexadecimal.
    """

    path: str
    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path, folder: Path) -> Artifact:
        """Describes the file `path` below `folder`."""
        with open_regular(path, "artifact") as file:
            digest = hashlib.file_digest(file, "sha256")
        return cls(path.relative_to(folder).as_posix(), path.stat().st_size, digest.hexdigest())


@dataclass(frozen=True)
class Manifest:
    """Content of `manifest.json`.

    Attributes:
        kind: what was run, as the command line has it: `compress`, `sweep quantize` ...
        settings: of the job, by name.
        state: `running`; `finished`; `failed`, by an error; `interrupted`, by a person or a kill.
        process: identity of the process, see `process_id`.
        command: the command line, `sys.argv`.
        environment: see `read_environment`.
        version: of `chop`.
        started: in UTC, ISO 8601.
        ended: the same; None while it runs, and after a kill.
        rows: the table of results.
        outcome: the numbers by which a list of runs tells it from others; None where the job has
            none, and before it is finished.
        artifacts: files that this run wrote below the folder.
        error: what it failed with.
        last_finished: the last run that finished in the same folder, where this one has not:
            results in the folder are its own.
        format: version of the file's format.
    """

    kind: str
    settings: Mapping[str, Any]
    state: State
    process: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    started: str = ""
    ended: str | None = None
    rows: tuple[Mapping[str, Any], ...] = ()
    outcome: Outcome | None = None
    artifacts: tuple[Artifact, ...] = ()
    error: str | None = None
    last_finished: Manifest | None = None
    format: int = FORMAT

    @property
    def plugin_names(self) -> Any:
        """Names of other packages among the settings, see `chop.base.plugins.names_in_use`."""
        return self.environment.get("plugin_names")

    @property
    def results(self) -> Manifest | None:
        """The manifest that describes the results in the folder, where there are any."""
        return self if self.state == "finished" else self.last_finished


def write_manifest(path: Path, manifest: Manifest) -> Manifest:
    """Writes a manifest; one that nobody could read again is shortened. Returns what was written.

    Raises:
        WriteError: it is too large without rows, or cannot be written.
    """
    for shorter in _ever_shorter(manifest):
        try:
            write_json(path, as_json(shorter), "manifest")
        except TooLargeError as error:
            reason = error
            continue
        if shorter is not manifest:
            warn_each_time(
                f"'{path}' has {len(shorter.rows):,} of {len(manifest.rows):,} rows, and the begin "
                "of a long error: more could not be read again. Tables have all rows.",
                UserWarning,
            )
        return shorter
    raise reason


def _ever_shorter(manifest: Manifest) -> Iterator[Manifest]:
    yield manifest
    most = len(manifest.rows)
    while True:
        most //= 2
        error = manifest.error and shorten(manifest.error, LONGEST_ERROR)
        before = manifest.last_finished
        if before is not None:
            before = replace(before, rows=before.rows[:most])
        yield replace(manifest, rows=manifest.rows[:most], error=error, last_finished=before)
        if most == 0:
            return


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of the last run in a folder; one whose process is gone was interrupted.

    Results that a kill has stopped on the way to their places are found where they are.

    Raises:
        CheckpointError: there is none, it is broken, or a later version of `chop` wrote it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        recover_folder(folder)
    with shared_lock(folder):
        path = latest(folder / MANIFEST)
        try:
            document = read_json(path, "manifest")
        except FileNotFoundError:
            raise CheckpointError(
                f"'{folder}' holds no {MANIFEST}: expected the output folder of a chop command."
            ) from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"'{path}' cannot be read: {error}.") from None
    found = document.get("format", FORMAT)
    if found != FORMAT:
        raise CheckpointError(
            f"'{path}' is of format {found!r}, expected {FORMAT}: read it with the version of chop "
            "that wrote it."
        )
    try:
        manifest: Manifest = parse(Manifest, document)
        if manifest.state == "running" and process_status(manifest.process) == "ended":
            return replace(manifest, state="interrupted")
        return manifest
    except ConfigError as error:
        raise CheckpointError(f"'{path}' is broken: {error}") from None
