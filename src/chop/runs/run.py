"""Running job: its manifest is written when it starts and when it ends, its files as one set."""

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
from chop.base.files.atomic import files_of_set
from chop.base.files.temporary import remove_orphans
from chop.base.installed import __version__
from chop.base.notices import warn_each_time
from chop.base.plugins import names_in_use, plugins_in_use
from chop.errors import CheckpointError, WriteError
from chop.runs.environment import now, read_environment
from chop.runs.manifest import MANIFEST, Artifact, Manifest, read_manifest, write_manifest
from chop.runs.outcome import Outcome
from chop.runs.process import process_id, process_status
from chop.runs.serialization import as_json, without_secrets

APART = "Give each its own --out."
IDENTITY = ("model", "dataset")
"""Settings without which results are of something else."""


class Run:
    """A run that is going on, see `start`.

    Attributes:
        folder: of its output.
        manifest: as it is on the disk.
        rows: the table of results; empty until the job sets it.
        outcome: the numbers by which a list tells it from others; None until the job sets it.
        written: files that were written so far; the job adds those of other processes.
        views: name of a file of the results -> its text, made from the manifest of the finished
            run, in which the views themselves are not listed yet.
    """

    def __init__(self, folder: Path, manifest: Manifest, written: list[Path]) -> None:
        self.folder, self.manifest, self.written = folder, manifest, written
        self.rows: Sequence[Mapping[str, Any]] = ()
        self.outcome: Outcome | None = None
        self.views: dict[str, Callable[[Manifest], str]] = {}
        self._has_warned = False

    @contextmanager
    def results(self) -> Iterator[Path]:
        """Yields a folder whose files, and the manifest, are put in place together or not at all.

        So are files that are written into the run's own folder meanwhile, tables and figures.
        The run is finished with the block: a reader sees its files and its manifest, or neither.

        Raises:
            WriteError: the disk is full or read-only.
        """
        with staged_files(self.folder, "results") as fresh:
            yield fresh
            self._warn_about_another(
                "These results replace its own, or it replaces these as it ends."
            )
            own = [Artifact.of(path, fresh) for path in files_of_set(fresh)]
            finished = self._finished([*own, *self._artifacts()])
            for name, view in self.views.items():
                write_text(fresh / name, view(finished))
            views = [Artifact.of(fresh / name, fresh) for name in self.views]
            finished = replace(finished, artifacts=(*finished.artifacts, *views))
            finished = write_manifest(fresh / MANIFEST, finished)
        self.manifest = finished

    def leave_out(self, folder: Path) -> None:
        """Leaves out of the manifest what was written below a folder, which is removed later."""
        inside = folder.resolve()
        self.written[:] = [x for x in self.written if not x.resolve().is_relative_to(inside)]

    def end(self, error: BaseException | None) -> None:
        """Writes how the run ended, unless another run has begun in the same folder since."""
        if self.manifest.state == "finished":
            return
        if not self._is_latest():
            if error is None:
                self._warn_about_another("The manifest is that of the other.")
            return
        if error is None:
            finished = self._finished(self._artifacts())
            self.manifest = write_manifest(self.folder / MANIFEST, finished)
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
        """Warns, once, where another run has begun in the folder since this one did."""
        if self._has_warned or self._is_latest():
            return
        self._has_warned = True
        with suppress(CheckpointError):
            other = read_manifest(self.folder)
            warn_each_time(
                f"'{self.folder}': {_described(other)} began here while this run was going on. "
                f"{outcome} {APART}",
                UserWarning,
            )

    def _is_latest(self) -> bool:
        with suppress(CheckpointError):
            found = read_manifest(self.folder)
            return (found.process, found.started) == (self.manifest.process, self.manifest.started)
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
        """Returns the environment with plug-ins, of which most are imported after the start."""
        return {**self.manifest.environment, **_plugins()}

    def _artifacts(self) -> list[Artifact]:
        """Files below the folder that were written and are still there."""
        folder = self.folder.resolve()
        files = sorted({path.resolve() for path in self.written if path.is_file()})
        return [
            Artifact.of(path, folder)
            for path in files
            if path.is_relative_to(folder) and path.name != MANIFEST
        ]


@contextmanager
def start(kind: str, settings: Any, folder: str | Path) -> Iterator[Run]:
    """Run: writes the manifest of a job when the block begins, and again when it ends.

    What killed runs have half written into the folder is removed, and into the folders below that
    the last results have files in. Elsewhere the next writer of a file removes what is left of it.

    Args:
        kind: name of the job, as on the command line.
        settings: settings of the job: a dataclass or a mapping.
        folder: output folder; made if missing.
    Yields: the run, whose `rows` become the manifest's.
    Warns: where the results in the folder are of another job, model or data set.
    Raises:
        WriteError: the folder cannot be written to.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with start("sweep", {"widths": (4, 8)}, folder) as run:
        ...         run.rows = [{"width": 4, "accuracy": 0.5}]
        ...     found = read_manifest(folder)
        >>> found.state, found.settings, found.rows
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
    )
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
    """Warns where another process runs into the same folder."""
    with suppress(CheckpointError):
        other = read_manifest(folder)
        # Of another machine or container nobody can tell whether it still runs.
        is_alive = process_status(other.process) in ("running", "stopped")
        if other.state == "running" and is_alive and other.process != process_id():
            warn_each_time(
                f"'{folder}': {_described(other)} runs into the same folder, and the run that ends "
                f"last replaces the results of the other. {APART}",
                UserWarning,
            )


def _warn_about_other_results(folder: Path, manifest: Manifest) -> None:
    """Warns where results are replaced that are no earlier ones of the same."""
    held = manifest.last_finished
    if held is None:
        return
    named = [
        (name, old, manifest.settings.get(name))
        for name in IDENTITY
        if (old := held.settings.get(name)) is not None
    ]
    is_other = any(new not in (old, None) for _, old, new in named)
    if is_other or held.kind != manifest.kind:
        what = " and ".join(f"{name} {old}" for name, old, _ in named)
        warn_each_time(
            f"'{folder}' holds results of chop {held.kind}{what and f' with {what}'}, and this run "
            f"of chop {manifest.kind} replaces the manifest and files of the same names. {APART}",
            UserWarning,
        )


def _described(manifest: Manifest) -> str:
    """`chop compress (process 12, since 2026-01-01T00:00:00)`."""
    number = manifest.process.rsplit(":", 2)[1]
    return f"chop {manifest.kind} (process {number}, since {manifest.started})"


def _list_folders(folder: Path, results: Manifest | None) -> set[Path]:
    """The folders below one that results have files in; a manifest may name anything."""
    inside = folder.resolve()
    artifacts = () if results is None else results.artifacts
    # realpath survives links that lead to themselves, and no file has a NUL byte in its name.
    names = (artifact.path for artifact in artifacts if "\0" not in artifact.path)
    found = {Path(os.path.realpath(inside / name)).parent for name in names}
    return {place for place in found - {inside} if place.is_relative_to(inside) and place.is_dir()}


def _last_finished(folder: Path) -> Manifest | None:
    with suppress(CheckpointError):
        return read_manifest(folder).results
    return None
