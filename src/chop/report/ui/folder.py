"""Runs below a folder: what each is, and how far one that is running has come."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.errors import CheckpointError, ChopError, ConfigError
from chop.files.documents import parse_json
from chop.files.reading import open_regular
from chop.report.charts import LineChart
from chop.report.search_plots import best_so_far_charts
from chop.runs import MANIFEST, read_manifest

DEEPEST = 6
"""Levels of folders that are looked at."""
MOST_RUNS = 5000
JOURNALS = ("points.jsonl", "stages.jsonl")
MOST_POINTS = 20
"""Points of a journal that are shown, the last ones."""
TAIL = 2**18
"""Bytes of a journal that are read."""


@dataclass(frozen=True)
class FoundRun:
    """A run in a list.

    Attributes:
        path: of its folder, below the folder of the list.
        kind: of command.
        state: `running`, `finished`, `failed`, `interrupted`, or `broken`.
        model: that it ran on; "" where the settings name none.
        started: in UTC, ISO 8601.
        ended: the same; "" while it runs.
        error: what it failed with, or why it cannot be read.
    """

    path: str
    kind: str
    state: str
    model: str = ""
    started: str = ""
    ended: str = ""
    error: str = ""


@dataclass(frozen=True)
class Progress:
    """How far a run has come.

    Attributes:
        run: what it is.
        points: the last ones of its journal: settings and results, by name.
        count: of all points that were read.
        charts: the best so far of a search.
        counts: outcome -> trials of a search.
    """

    run: FoundRun
    points: tuple[Mapping[str, Any], ...] = ()
    count: int = 0
    charts: tuple[LineChart, ...] = ()
    counts: Mapping[str, int] | None = None


class RunsFolder:
    """The runs below a folder. Manifests are read again only where they have changed.

    Args:
        root: the folder; links that lead out of it are not followed.
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
        try:
            is_run = folder is not None and (folder / MANIFEST).is_file()
        except OSError:  # a name that is too long, a folder that may not be read
            is_run = False
        return self._run(folder) if folder is not None and is_run else None

    def inside(self, path: str) -> Path | None:
        """A path below the folder, links followed; None where it leads out of it."""
        if "\0" in path:
            return None
        try:
            found = (self.root / path).resolve()
        except (OSError, RuntimeError):  # a loop of links
            return None
        return found if found.is_relative_to(self.root) else None

    def progress(self, path: str) -> Progress | None:
        """How far a run has come; None where the path has none."""
        run, folder = self.run(path), self.inside(path)
        if run is None or folder is None:
            return None
        points, count = _points(folder)
        charts, counts = _search(folder) if run.kind.startswith("search") else ((), None)
        return Progress(run, points, count, charts, counts)

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
            known = (folder / MANIFEST).stat()
        except OSError as error:
            return FoundRun(path, "", "broken", error=str(error))
        stamp = known.st_mtime_ns, known.st_size
        found = self._read.get(path)
        if found is not None and found[0] == stamp and found[1].state != "running":
            return found[1]
        run = _read_run(folder, path)
        self._read[path] = stamp, run
        return run


def _read_run(folder: Path, path: str) -> FoundRun:
    try:
        manifest = read_manifest(folder)
    except (CheckpointError, OSError) as error:
        return FoundRun(path, "", "broken", error=str(error))
    model = manifest.settings.get("model")
    return FoundRun(
        path,
        manifest.kind,
        manifest.state,
        model if isinstance(model, str) else "",
        manifest.started,
        manifest.ended or "",
        manifest.error or "",
    )


def _points(folder: Path) -> tuple[tuple[Mapping[str, Any], ...], int]:
    """The last points of the folder's journal, and how many there are in what was read of it."""
    for name in JOURNALS:
        try:
            with open_regular(folder / name, "artifact") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL))
                lines = file.read(TAIL).split(b"\n")
        except (OSError, ConfigError):
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
    from chop.search.objective import objectives_of
    from chop.search.reading import load_search

    try:
        noted, result = load_search(str(folder))
    except (ChopError, OSError, ValueError, KeyError):
        return (), None
    run = result.best_so_far()
    name = objectives_of(noted["goals"])[0].name
    if not run:
        return (), dict(result.counts)
    title, curve = f"{name} by trials", {noted["name"]: [run]}
    charts = best_so_far_charts(curve, ylabel=f"best {name} so far", title=title, percent=False)
    return tuple(charts), dict(result.counts)
