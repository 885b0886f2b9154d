"""Manifest of a run: command, settings, environment and results.

A run writes `manifest.json` into its output folder at its start and its end. Reports and other jobs
read it with `read_manifest`.
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
from chop.errors import MOST_NAMES, CheckpointError, ConfigError, enumerate_names, shorten
from chop.runs.outcome import Outcome
from chop.runs.process import process_status
from chop.runs.serialization import as_json

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of the file format."""
LONGEST_ERROR = 10_000
"""Maximum length of an error in a manifest that would be too large."""

State = Literal["running", "finished", "failed", "interrupted"]


@dataclass(frozen=True)
class Artifact:
    """File written by a run.

    Attributes:
        path: path relative to the output folder, with `/` between folders.
        size_bytes: size of the file.
        sha256: digest of its content, in hexadecimal.
    """

    path: str
    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path, folder: Path) -> Artifact:
        """Describes the file `path` in `folder`."""
        with open_regular(path, "artifact") as file:
            digest = hashlib.file_digest(file, "sha256")
        return cls(path.relative_to(folder).as_posix(), path.stat().st_size, digest.hexdigest())


@dataclass(frozen=True)
class Manifest:
    """Content of `manifest.json`.

    Attributes:
        kind: command as on the command line: `compress`, `sweep quantize` ...
        settings: settings of the job by name.
        state: `running`, `finished`, `failed` (by an error) or `interrupted` (by a person or a
            kill).
        process: identity of the process, see `process_id`.
        command: command line, `sys.argv`.
        environment: environment, see `read_environment`.
        version: version of `chop`.
        started: start time in UTC, ISO 8601.
        ended: end time in UTC, ISO 8601. None while running, and after a kill.
        rows: table of results.
        outcome: key numbers for lists of runs. None if the job has none, and before it finishes.
        artifacts: files written by this run in the folder.
        error: error of a failed run.
        last_finished: last finished run in the same folder, if this one has not finished. The
            results in the folder are from that run.
        subject: fingerprint of a program's own model and rows, which have no name in the settings.
        format: version of the file format.
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
    subject: str = ""
    format: int = FORMAT

    @property
    def plugin_names(self) -> Any:
        """Names of plugins in the settings, see `chop.base.plugins.names_in_use`."""
        return self.environment.get("plugin_names")

    @property
    def results(self) -> Manifest | None:
        """Manifest of the results in the folder, or None."""
        return self if self.state == "finished" else self.last_finished


def write_manifest(path: Path, manifest: Manifest) -> Manifest:
    """Writes a manifest, shortened if it is too large to be read, and returns the written one.

    Raises:
        WriteError: if it is too large even without rows, or cannot be written.
    """
    for shorter in _ever_shorter(manifest):
        try:
            write_json(path, as_json(shorter), "manifest")
        except TooLargeError as error:
            reason = error
            continue
        if shorter is not manifest:
            warn_each_time(
                f"'{path}' is limited to {len(shorter.rows):,} of {len(manifest.rows):,} rows and "
                "a short error, because of its size. The tables have all rows.",
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
    """Reads the manifest of the last run in a folder; a run whose process ended is interrupted.

    Results whose move into place was cut short by a kill are found in their temporary place.

    Raises:
        CheckpointError: if there is no manifest, or it is corrupt or from a later version of
            `chop`.
    """
    folder = Path(folder)
    if not folder.is_dir():
        recover_folder(folder)
    with shared_lock(folder):
        path = latest(folder / MANIFEST)
        try:
            document = read_json(path, "manifest")
        except (FileNotFoundError, NotADirectoryError):
            lacks = f"has no {MANIFEST}" if folder.is_dir() else "is not a folder"
            runs = sorted(folder.glob(f"*/{MANIFEST}")) if folder.is_dir() else []
            listed = enumerate_names([f"'{path.parent}'" for path in runs], MOST_NAMES)
            advice = f"; it contains {listed}" if runs else ""
            if folder.is_file() and (folder.parent / MANIFEST).exists():
                advice = f", such as '{folder.parent}', which has this file"
            raise CheckpointError(
                f"'{folder}' {lacks}: expected the output folder of a chop command{advice}."
            ) from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"'{path}' cannot be read: {error}.") from None
    file_format = document.get("format", FORMAT)
    if file_format != FORMAT:
        raise CheckpointError(
            f"'{path}' has format {file_format!r}, expected {FORMAT}: read it with the version of "
            "chop that wrote it."
        )
    try:
        manifest: Manifest = parse(Manifest, document)
        if manifest.state == "running" and process_status(manifest.process) == "ended":
            return replace(manifest, state="interrupted")
        return manifest
    except ConfigError as error:
        raise CheckpointError(f"'{path}' is broken: {error}") from None
