"""Runs below a folder: what each is, and how far one that is running has come."""

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
from chop.report.ui.found import FoundRun, found_run
from chop.runs import MANIFEST, read_manifest

DEEPEST = 6
"""Levels of folders that are looked at."""
MOST_RUNS = 5000
JOURNALS = ("points.jsonl", "stages.jsonl")
MOST_POINTS = 20
"""Points of a journal that are shown, the last ones."""
TAIL = 2**18
"""Bytes of a journal that are read."""
BESIDE_STORAGE = ("-journal", "-wal", "-shm")
LINK = "is a link, and links are not followed."


@dataclass(frozen=True)
class Progress:
    """How far a run has come.

    Attributes:
        run: what it is.
        points: the last ones of its journal: settings and results, by name.
        count: of all points that were read.
        charts: the best so far of a search.
        counts: outcome -> trials of a search.
        notes: reasons why files of it are not shown.
    """

    run: FoundRun
    points: tuple[Mapping[str, Any], ...] = ()
    count: int = 0
    charts: tuple[LineChart, ...] = ()
    counts: Mapping[str, int] | None = None
    notes: tuple[str, ...] = ()


class RunsFolder:
    """The runs below a folder. Manifests are read again only where they have changed.

    Args:
        root: the folder; it may be a link, and no link below it is followed.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        self._read: dict[str, tuple[tuple[int, int], FoundRun]] = {}

    def runs(self) -> list[FoundRun]:
        """All of them, the last one first."""
        found = [self._run(folder) for folder in self._folders()]
        return sorted(found, key=lambda run: (run.started, run.path), reverse=True)

    def run(self, path: str) -> FoundRun | None:
        """One of them; None where the path has none, or leads out of the folder."""
        folder = self.inside(path)
        if folder is None or not os.path.lexists(folder / MANIFEST):
            return None
        return None if (folder / MANIFEST).is_dir() else self._run(folder)

    def inside(self, path: str) -> Path | None:
        """Resolves a path below the folder. None if it leads outside or through a link."""
        place = Path(os.path.normpath(self.root / path))
        try:
            has_links = place.resolve() != place
        except (OSError, RuntimeError, ValueError):  # a loop of links, a name that can be none
            return None
        return place if not has_links and place.is_relative_to(self.root) else None

    def page(self, run: FoundRun) -> str | None:
        """Reads the page of a run, or None if there is none to show."""
        place = latest(self.root / run.path / PAGE)
        if self.inside(place.relative_to(self.root).as_posix()) != place:
            return None
        try:
            with open_plain(place, "page") as file:
                return file.read().decode("utf-8", "replace")
        except (ConfigError, OSError):
            return None

    def progress(self, path: str) -> Progress | None:
        """How far a run has come; None where the path has none."""
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
        """Returns the reasons not to read the storage of a search: it is elsewhere, or a link."""
        from chop.search.location import storage_file
        from chop.search.reading import find_storage

        try:
            file = storage_file(find_storage(str(folder), None)[0])
        except (ChopError, OSError) as error:
            return [_reason(error)]
        if file is None or not file.is_relative_to(self.root):
            return ["The trials of this search are outside of the folder of the list."]
        # SQLite reads what is beside its file with it.
        files = [file.with_name(file.name + end) for end in ("", *BESIDE_STORAGE)]
        return [reason for each in files for reason in _why_not_read(each)]

    def _folders(self) -> Iterator[Path]:
        start, found = len(self.root.parts), 0
        for name, folders, files in os.walk(self.root):
            place = Path(name)
            too_deep = len(place.parts) - start >= DEEPEST
            folders[:] = [] if too_deep else sorted(f for f in folders if not f.startswith("."))
            if MANIFEST in files:
                found += 1
                yield place
            if found >= MOST_RUNS:
                return

    def _run(self, folder: Path) -> FoundRun:
        path = folder.relative_to(self.root).as_posix()
        try:
            # After a kill the newest may be in a folder beside the others.
            manifest = latest(folder / MANIFEST)
            if self.inside(manifest.relative_to(self.root).as_posix()) != manifest:
                raise ConfigError(f"{manifest.name} {LINK}")
            with open_plain(manifest, "manifest") as file:
                known = os.fstat(file.fileno())
        except (ConfigError, OSError) as error:
            return FoundRun(path, "", "broken", error=_reason(error))
        stamp = known.st_mtime_ns, known.st_size
        found = self._read.get(path)
        if found is not None and found[0] == stamp and found[1].state != "running":
            return found[1]
        run = _read_run(folder, path)
        self._read[path] = stamp, run
        return run


def _read_run(folder: Path, path: str) -> FoundRun:
    try:
        return found_run(path, folder, read_manifest(folder))
    except (CheckpointError, OSError) as error:
        return FoundRun(path, "", "broken", error=str(error))


def open_plain(path: Path, kind: str) -> BinaryIO:
    """Opens a regular file, and no link, for reading.

    Args:
        path: file in a folder that no link leads to.
        kind: a key of `BOUNDS`.
    Raises:
        OSError: it is missing or cannot be read.
        ConfigError: it is something else, or has more bytes than its kind may have.
    """
    try:
        return open_regular(path, kind, follow_links=False)
    except NotReadableError as error:
        raise ConfigError(f"{path.name}: {error}.") from None


def _why_not_read(path: Path) -> list[str]:
    """Returns the reasons why a file is not shown; empty if it can be, or if there is none."""
    try:
        open_plain(path, "page" if path.name == PAGE else "artifact").close()
    except FileNotFoundError:
        return []
    except (ConfigError, OSError) as error:
        return [_reason(error)]
    return []


def _reason(error: Exception) -> str:
    """An error without the path of the folder."""
    if isinstance(error, OSError) and isinstance(error.filename, str):
        return f"{Path(error.filename).name}: {error.strerror}."
    return str(error)


def _points(folder: Path, notes: list[str]) -> tuple[tuple[Mapping[str, Any], ...], int]:
    """The last points of the folder's journal, and how many there are in what was read of it."""
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
        found = [row for line in lines if (row := _point(line)) is not None]
        return tuple(found[-MOST_POINTS:]), len(found)
    return (), 0


def _point(line: bytes) -> Mapping[str, Any] | None:
    """A line of a journal as one row; None where it is half of one, or was removed."""
    try:
        entry = parse_json(line)
    except ChopError:
        return None
    settings, result = entry.get("settings"), entry.get("result")
    if not isinstance(settings, dict) or not isinstance(result, dict):
        return None
    return {**settings, **result}


def _search(folder: Path) -> tuple[tuple[LineChart, ...], dict[str, int] | None]:
    """The best value so far of a search in its storage; none where it cannot be read yet."""
    from chop.search.objective import select_objectives
    from chop.search.reading import load_search

    try:
        noted, result = load_search(str(folder))
    except (ChopError, OSError, ValueError, KeyError):
        return (), None
    run = result.best_by_trial()
    name = select_objectives(noted["goals"])[0].name
    if not run:
        return (), dict(result.counts)
    title, curve = f"{name} by trials", {noted["name"]: [run]}
    charts = best_so_far_charts(curve, ylabel=f"best {name} so far", title=title, percent=False)
    return tuple(charts), dict(result.counts)
