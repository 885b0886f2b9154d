"""Running job: manifest at start and end, and atomic replacement of result files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from chop.base.files import (
    make_folder,
    recording_writes,
    recover_folder,
    settle,
    staged_files,
    write_text,
)
from chop.base.files.atomic import list_set_files
from chop.base.files.temporary import remove_orphans
from chop.base.installed import __version__
from chop.base.notices import warn_each_time
from chop.base.plugins import names_in_use, plugins_in_use
from chop.errors import CheckpointError, ConfigError, WriteError
from chop.runs.environment import now, read_environment
from chop.runs.manifest import MANIFEST, Artifact, Manifest, read_manifest, write_manifest
from chop.runs.outcome import Outcome
from chop.runs.process import process_id, process_status
from chop.runs.serialization import as_json, without_secrets

APART = "Use a separate --out for each run."
IDENTITY = ("model", "dataset")
"""Settings that identify the subject of the results."""
SOURCES = ("model", "start_from", "weights_from", "compressed", "reference")
"""Settings that can name the folder of another run."""
NAMES = (
    *("model.pt", "model.mz", "model.onnx", "result.json"),
    *("report.html", "table.md", "plan.json"),
)
"""Files of jobs in their output folder that the user may have under the same name."""


class Run:
    """Active run, see `start`.

    Attributes:
        folder: output folder.
        manifest: manifest as written to disk.
        rows: table of results, set by the job.
        outcome: key numbers for lists of runs, set by the job, or None.
        written: files written so far. The job adds files of other processes.
        views: file name -> function that renders it from the manifest of the finished run, which
            does not list the views yet.
    """

    def __init__(self, folder: Path, manifest: Manifest, written: list[Path]) -> None:
        self.folder, self.manifest, self.written = folder, manifest, written
        self.rows: Sequence[Mapping[str, Any]] = ()
        self.outcome: Outcome | None = None
        self.views: dict[str, Callable[[Manifest], str]] = {}
        self._has_warned = False

    @contextmanager
    def results(self) -> Iterator[Path]:
        """Yields a folder whose files are put in place together with the manifest, or not at all.

        Files written into the run's own folder meanwhile, such as tables and figures, are included.
        The run finishes with the block. Readers see both files and manifest, or neither.

        Raises:
            WriteError: if the disk is full or read-only.
        """
        with staged_files(self.folder, "results") as fresh:
            yield fresh
            self._warn_about_another("The run that ends last replaces the results of the other.")
            own = [Artifact.of(path, fresh) for path in list_set_files(fresh)]
            finished = self._finished([*own, *self._artifacts()])
            for name, view in self.views.items():
                write_text(fresh / name, view(finished))
            views = [Artifact.of(fresh / name, fresh) for name in self.views]
            finished = replace(finished, artifacts=(*finished.artifacts, *views))
            finished = write_manifest(fresh / MANIFEST, finished)
        self.manifest = finished

    def leave_out(self, folder: Path) -> None:
        """Excludes files below a temporary folder from the manifest."""
        inside = folder.resolve()
        self.written[:] = [x for x in self.written if not x.resolve().is_relative_to(inside)]

    def end(self, error: BaseException | None) -> None:
        """Writes the end of the run, unless another run has started in the folder since.

        A run that was refused before it wrote a file leaves the manifest of the finished run.
        """
        if self.manifest.state == "finished":
            return
        if not self._is_latest():
            if error is None:
                self._warn_about_another("The manifest belongs to the other run.")
            return
        if error is None:
            finished = self._finished(self._artifacts())
            self.manifest = write_manifest(self.folder / MANIFEST, finished)
            return
        held = self.manifest.last_finished
        if held is not None and isinstance(error, ConfigError) and not self.written:
            with suppress(WriteError):
                self.manifest = write_manifest(self.folder / MANIFEST, held)
            return
        self.manifest = replace(
            self.manifest,
            environment=self._environment(),
            state="interrupted" if isinstance(error, KeyboardInterrupt) else "failed",
            ended=now(),
            error=f"{type(error).__name__}: {error}",
        )
        with suppress(WriteError):  # the run's own error matters more
            self.manifest = write_manifest(self.folder / MANIFEST, self.manifest)

    def _warn_about_another(self, outcome: str) -> None:
        """Warns once if another run has started in the folder since."""
        if self._has_warned or self._is_latest():
            return
        self._has_warned = True
        with suppress(CheckpointError):
            other = read_manifest(self.folder)
            warn_each_time(
                f"'{self.folder}': {_described(other)} started here during this run. "
                f"{outcome} {APART}",
                UserWarning,
            )

    def _is_latest(self) -> bool:
        with suppress(CheckpointError):
            current = read_manifest(self.folder)
            return (current.process, current.started) == (
                self.manifest.process,
                self.manifest.started,
            )
        return True

    def _finished(self, artifacts: Iterable[Artifact]) -> Manifest:
        return replace(
            self.manifest,
            state="finished",
            ended=now(),
            environment=self._environment(),
            rows=tuple(self.rows),
            outcome=self.outcome,
            artifacts=tuple(artifacts),
            last_finished=None,
        )

    def _environment(self) -> dict[str, Any]:
        """Returns the environment with plugins, most of which are imported after the start."""
        return {**self.manifest.environment, **_plugins()}

    def _artifacts(self) -> list[Artifact]:
        """Returns files in the folder that were written and still exist."""
        folder = self.folder.resolve()
        files = sorted({path.resolve() for path in self.written if path.is_file()})
        return [
            Artifact.of(path, folder)
            for path in files
            if path.is_relative_to(folder) and path.name != MANIFEST
        ]


@contextmanager
def start(kind: str, settings: Any, folder: str | Path, subject: str = "") -> Iterator[Run]:
    """Context manager of a run that writes the manifest of a job at its start and its end.

    Incomplete files of killed runs are removed from the folder and its subfolders with results. In
    other places, the next writer of a file removes them.

    Args:
        kind: name of the job, as on the command line.
        settings: settings of the job: a dataclass or a mapping.
        folder: output folder, created if missing.
        subject: fingerprint of a program's own model and rows.
    Yields: the run, whose `rows` become the manifest's.
    Warns: if the results in the folder are from another job, model or data set.
    Raises:
        ConfigError: if the job reads the run of another job in the same folder, or the folder is
            the user's own: a model, a data set, or files that the job would replace.
        WriteError: if the folder is not writable.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with start("sweep", {"widths": (4, 8)}, folder) as run:
        ...         run.rows = [{"width": 4, "accuracy": 0.5}]
        ...     manifest = read_manifest(folder)
        >>> manifest.state, manifest.settings, manifest.rows
        ('finished', {'widths': [4, 8]}, ({'width': 4, 'accuracy': 0.5},))
    """
    recover_folder(Path(folder))
    folder = make_folder(folder)
    settle(folder)
    last_finished = _last_finished(folder)
    for place in (folder, *_list_folders(folder, last_finished)):
        remove_orphans(place.glob(".*.part"))
    _warn_about_a_running_one(folder)
    manifest = Manifest(
        kind=kind,
        settings=as_json(settings),
        state="running",
        process=process_id(),
        command=tuple(without_secrets(argument) for argument in sys.argv),
        environment={**read_environment(), **_plugins()},
        version=__version__,
        started=now(),
        last_finished=last_finished,
        subject=subject,
    )
    _check_is_not_read(folder, manifest)
    _check_is_not_of_user(folder, manifest)
    _warn_about_other_results(folder, manifest)
    manifest = write_manifest(folder / MANIFEST, manifest)
    with recording_writes() as written:
        run = Run(folder, manifest, written)
        try:
            yield run
            run.end(None)
        except BaseException as error:
            run.end(error)
            raise


def _plugins() -> dict[str, Any]:
    names = names_in_use()
    return {"plugins": plugins_in_use(), **({"plugin_names": names} if names else {})}


def _warn_about_a_running_one(folder: Path) -> None:
    """Warns if another process is running in the same folder."""
    with suppress(CheckpointError):
        other = read_manifest(folder)
        # Processes of other machines and containers cannot be checked.
        is_alive = process_status(other.process) in ("running", "stopped")
        if other.state == "running" and is_alive and other.process != process_id():
            warn_each_time(
                f"'{folder}': {_described(other)} is writing to the same folder. The run that ends "
                f"last replaces the results of the other. {APART}",
                UserWarning,
            )


def _check_is_not_read(folder: Path, manifest: Manifest) -> None:
    """Raises ConfigError if a job would replace the manifest of the run that it reads."""
    held = manifest.last_finished
    sources = {manifest.settings.get(name) for name in SOURCES} - {None}
    if held is None or held.kind == manifest.kind:
        return
    if folder.resolve() in {Path(str(source)).expanduser().resolve() for source in sources}:
        raise ConfigError(
            f"--out {folder}: chop {manifest.kind} reads the run of chop {held.kind} in this "
            "folder, and would replace its manifest; use another folder."
        )


def _check_is_not_of_user(folder: Path, manifest: Manifest) -> None:
    """Raises ConfigError if a folder without a run is an input, or has files of the job's names."""
    if os.path.lexists(folder / MANIFEST):
        return
    for name in (*SOURCES, "dataset", "weights"):
        given = manifest.settings.get(name)
        if isinstance(given, str) and Path(given).expanduser().resolve() == folder.resolve():
            raise ConfigError(
                f"out: '{folder}' is the folder of the {name.replace('_', ' ')}, and results do "
                "not belong there: choose another folder."
            )
    own = next((folder / name for name in NAMES if os.path.lexists(folder / name)), None)
    if own is not None:
        raise ConfigError(
            f"out: '{folder}' has files of its own, such as {own}, which would be replaced: "
            "choose another folder."
        )


def _warn_about_other_results(folder: Path, manifest: Manifest) -> None:
    """Warns if results of a different job, model or data set are replaced."""
    held = manifest.last_finished
    if held is None:
        return
    named = [
        (name, old, manifest.settings.get(name))
        for name in IDENTITY
        if (old := held.settings.get(name)) is not None
    ]
    is_other = any(new not in (old, None) for _, old, new in named)
    # Two models of one class have one name, as have all data of programs.
    subjects = {held.subject, manifest.subject} - {""}
    is_twin = not is_other and len(subjects) > 1
    if is_other or is_twin or held.kind != manifest.kind:
        what = " and ".join(f"{name} {old}" for name, old, _ in named)
        what += ", of other weights or rows" * is_twin
        warn_each_time(
            f"'{folder}' contains results of chop {held.kind}{what and f' with {what}'}. This run "
            f"of chop {manifest.kind} replaces the manifest and files of the same names. {APART}",
            UserWarning,
        )


def _described(manifest: Manifest) -> str:
    """Describes a run, as in `chop compress (process 12, since 2026-01-01T00:00:00)`."""
    number = manifest.process.rsplit(":", 2)[1]
    return f"chop {manifest.kind} (process {number}, since {manifest.started})"


def _list_folders(folder: Path, results: Manifest | None) -> set[Path]:
    """Returns subfolders with results; manifest entries outside of the folder are ignored."""
    inside = folder.resolve()
    artifacts = () if results is None else results.artifacts
    # realpath accepts circular links, and file names cannot contain NUL bytes.
    names = (artifact.path for artifact in artifacts if "\0" not in artifact.path)
    folders = {Path(os.path.realpath(inside / name)).parent for name in names}
    return {
        place for place in folders - {inside} if place.is_relative_to(inside) and place.is_dir()
    }


def _last_finished(folder: Path) -> Manifest | None:
    with suppress(CheckpointError):
        return read_manifest(folder).results
    return None
