"""Runs below a folder and the progress of running ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from chop.base.files import latest
from chop.base.files.documents import parse_json
from chop.base.files.reading import NotReadableError, open_regular
from chop.errors import CheckpointError, ChopError, ConfigError
from chop.report.charts.best_so_far import best_so_far_charts
from chop.report.charts.chart import LineChart
from chop.report.page.page import PAGE
from chop.report.ui.run_entry import RunEntry, summarize_run
from chop.runs import MANIFEST, read_manifest

DEEPEST = 6
"""Maximum depth of searched folders."""
MAX_RUNS = 5000
JOURNALS = ("points.jsonl", "stages.jsonl")
MAX_POINTS = 20
"""Maximum number of journal points shown, counted from the end."""
TAIL = 2**18
"""Maximum number of journal bytes read."""
BESIDE_STORAGE = ("-journal", "-wal", "-shm")
LINK = "is a link. Links are not followed."


@dataclass(frozen=True)
class Progress:
    """Progress of a run.

    Attributes:
        run: the run.
        points: last points of its journal: settings and results by name.
        count: number of points read.
        charts: best-so-far chart of a search.
        counts: outcome -> number of trials of a search.
        notes: reasons why some files are not shown.
    """

    run: RunEntry
    points: tuple[Mapping[str, Any], ...] = ()
    count: int = 0
    charts: tuple[LineChart, ...] = ()
    counts: Mapping[str, int] | None = None
    notes: tuple[str, ...] = ()


class RunsFolder:
    """Runs below a folder. Manifests are read again only when they change.

    Args:
        root: folder of the runs. It may be a link; links below it are not followed.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        self._read: dict[str, tuple[tuple[int, int], RunEntry]] = {}

    def runs(self) -> list[RunEntry]:
        """Returns all runs, latest first."""
        runs = [self._run(folder) for folder in self._folders()]
        return sorted(runs, key=lambda run: (run.started, run.path), reverse=True)

    def run(self, path: str) -> RunEntry | None:
        """Returns the run at a path, or None if there is none inside the folder."""
        folder = self.inside(path)
        if folder is None or not os.path.lexists(folder / MANIFEST):
            return None
        return None if (folder / MANIFEST).is_dir() else self._run(folder)

    def inside(self, path: str) -> Path | None:
        """Resolves a path below the folder; returns None if it leads outside or through a link."""
        place = Path(os.path.normpath(self.root / path))
        try:
            has_links = place.resolve() != place
        except (OSError, RuntimeError, ValueError):  # a loop of links, an invalid name
            return None
        return place if not has_links and place.is_relative_to(self.root) else None

    def page(self, run: RunEntry) -> str | None:
        """Reads the page of a run; returns None if there is none."""
        place = latest(self.root / run.path / PAGE)
        if self.inside(place.relative_to(self.root).as_posix()) != place:
            return None
        try:
            with open_plain(place, "page") as file:
                return file.read().decode("utf-8", "replace")
        except (ConfigError, OSError):
            return None

    def progress(self, path: str) -> Progress | None:
        """Returns the progress of the run at a path, or None if there is no run."""
        run, folder = self.run(path), self.inside(path)
        if run is None or folder is None:
            return None
        notes: list[str] = []
        points, count = _points(folder, notes)
        charts: tuple[LineChart, ...] = ()
        counts = None
        if run.kind.startswith("search"):
            refused = self._why_no_storage(folder)
            notes += refused
            charts, counts = ((), None) if refused else _search(folder)
        if run.state != "running":
            notes += _why_not_read(folder / PAGE)
        return Progress(run, points, count, charts, counts, tuple(notes))

    def _why_no_storage(self, folder: Path) -> list[str]:
        """Returns reasons not to read a search storage: it is outside of the folder, or a link."""
        from chop.search.location import storage_file
        from chop.search.reading import find_storage

        try:
            file = storage_file(find_storage(str(folder), None)[0])
        except (ChopError, OSError) as error:
            return [_reason(error)]
        if file is None or not file.is_relative_to(self.root):
            return ["The trials of this search are stored outside of the served folder."]
        # SQLite also reads the log files next to a database.
        files = [file.with_name(file.name + end) for end in ("", *BESIDE_STORAGE)]
        return [reason for each in files for reason in _why_not_read(each)]

    def _folders(self) -> Iterator[Path]:
        start, count = len(self.root.parts), 0
        for name, folders, files in os.walk(self.root):
            place = Path(name)
            too_deep = len(place.parts) - start >= DEEPEST
            folders[:] = [] if too_deep else sorted(f for f in folders if not f.startswith("."))
            if MANIFEST in files:
                count += 1
                yield place
            if count >= MAX_RUNS:
                return

    def _run(self, folder: Path) -> RunEntry:
        path = folder.relative_to(self.root).as_posix()
        try:
            # After a kill, the newest manifest may still be in a set that is not moved into place.
            manifest = latest(folder / MANIFEST)
            if self.inside(manifest.relative_to(self.root).as_posix()) != manifest:
                raise ConfigError(f"{manifest.name} {LINK}")
            with open_plain(manifest, "manifest") as file:
                known = os.fstat(file.fileno())
        except (ConfigError, OSError) as error:
            return RunEntry(path, "", "broken", error=_reason(error))
        stamp = known.st_mtime_ns, known.st_size
        cached = self._read.get(path)
        if cached is not None and cached[0] == stamp and cached[1].state != "running":
            return cached[1]
        run = _read_run(folder, path)
        self._read[path] = stamp, run
        return run


def _read_run(folder: Path, path: str) -> RunEntry:
    try:
        return summarize_run(path, folder, read_manifest(folder))
    except (CheckpointError, OSError) as error:
        return RunEntry(path, "", "broken", error=str(error))


def open_plain(path: Path, kind: str) -> BinaryIO:
    """Opens a regular file for reading, and no link.

    Args:
        path: file in a folder that was checked for links.
        kind: key of `BOUNDS`.
    Raises:
        OSError: if the file is missing or unreadable.
        ConfigError: if the path is not a regular file, or exceeds the size limit of its kind.
    """
    try:
        return open_regular(path, kind, follow_links=False)
    except NotReadableError as error:
        raise ConfigError(f"{path.name}: {error}.") from None


def _why_not_read(path: Path) -> list[str]:
    """Returns reasons why a file is not shown; empty if it is readable or missing."""
    try:
        open_plain(path, "page" if path.name == PAGE else "artifact").close()
    except FileNotFoundError:
        return []
    except (ConfigError, OSError) as error:
        return [_reason(error)]
    return []


def _reason(error: Exception) -> str:
    """Returns an error message without the path of the folder."""
    if isinstance(error, OSError) and isinstance(error.filename, str):
        return f"{Path(error.filename).name}: {error.strerror}."
    return str(error)


def _points(folder: Path, notes: list[str]) -> tuple[tuple[Mapping[str, Any], ...], int]:
    """Returns the last points of the folder's journal, and the number of points read."""
    for name in JOURNALS:
        try:
            with open_plain(folder / name, "artifact") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL))
                lines = file.read(TAIL).split(b"\n")
        except FileNotFoundError:
            continue
        except (ConfigError, OSError) as error:
            notes.append(_reason(error))
            continue
        rows = [row for line in lines if (row := _point(line)) is not None]
        return tuple(rows[-MAX_POINTS:]), len(rows)
    return (), 0


def _point(line: bytes) -> Mapping[str, Any] | None:
    """Parses a journal line as a row; returns None for incomplete or removed entries."""
    try:
        entry = parse_json(line)
    except ChopError:
        return None
    settings, result = entry.get("settings"), entry.get("result")
    if not isinstance(settings, dict) or not isinstance(result, dict):
        return None
    return {**settings, **result}


def _search(folder: Path) -> tuple[tuple[LineChart, ...], dict[str, int] | None]:
    """Returns a chart and trial counts of a search from its storage; empty if unreadable."""
    from chop.search.objective import select_objectives
    from chop.search.reading import load_search

    try:
        stored, result = load_search(str(folder))
    except (ChopError, OSError, ValueError, KeyError):
        return (), None
    run = result.best_by_trial()
    name = select_objectives(stored["goals"])[0].name
    if not run:
        return (), dict(result.counts)
    title, curve = f"{name} by trials", {stored["name"]: [run]}
    charts = best_so_far_charts(curve, ylabel=f"best {name} so far", title=title, percent=False)
    return tuple(charts), dict(result.counts)
