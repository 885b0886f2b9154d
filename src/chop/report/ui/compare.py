"""Comparison of runs: numbers, differing settings, and charts on common axes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chop.base.files.documents import parse_json
from chop.errors import CheckpointError, ChopError
from chop.report.document import FILE, Document, PageTable, parse_document
from chop.report.page.page import PageRun, Picture, common_charts, compared_tiles, picture
from chop.report.ui.cells import list_cells
from chop.report.ui.folder import RunsFolder, open_plain
from chop.report.ui.run_entry import RunEntry
from chop.runs import Manifest, read_manifest

MAX_RUNS = 8
"""Maximum number of compared runs."""
MAX_SETTINGS = 200
LONGEST_TEXT = 200


@dataclass(frozen=True)
class _Fact:
    """A row of the comparison.

    Attributes:
        name: name of the compared value.
        texts: text for each run, "" if it has none.
        difference: second run minus first run, if there are two with numbers.
    """

    name: str
    texts: tuple[str, ...]
    difference: str = ""


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        runs: runs in the requested order.
        facts: facts from the list of runs.
        settings: settings that differ.
        tiles: headline numbers of their pages. None if a run has no page.
        pictures: charts that several runs share.
        notes: reasons why something is not shown.
    """

    runs: tuple[RunEntry, ...]
    facts: tuple[_Fact, ...]
    settings: tuple[_Fact, ...]
    tiles: PageTable | None
    pictures: tuple[Picture, ...]
    notes: tuple[str, ...]


def compare(folder: RunsFolder, paths: Sequence[str]) -> Comparison | None:
    """Compares runs of a folder; returns None for an unknown path or fewer than two runs.

    Args:
        folder: folder of the list of runs.
        paths: paths relative to the folder. Duplicates count once.
    """
    chosen = list(dict.fromkeys(paths))[:MAX_RUNS]
    runs = [run for path in chosen if (run := folder.run(path)) is not None]
    if len(runs) < 2 or len(runs) < len(chosen):
        return None
    notes: list[str] = []
    pages = [page for run in runs if (page := _page(folder, run, notes)) is not None]
    settings = _differing([page.manifest.settings for page in pages])
    tiles, pictures = _drawn([page for page in pages if page.document.tiles], notes)
    return Comparison(
        tuple(runs),
        tuple(_facts(runs)),
        tuple(settings) if len(pages) == len(runs) else (),
        tiles,
        pictures,
        tuple(notes),
    )


def _facts(runs: Sequence[RunEntry]) -> list[_Fact]:
    columns = zip(*map(list_cells, runs), strict=True)
    facts = []
    for cells in columns:
        values = [cell.value for cell in cells]
        texts = tuple(cell.title or cell.text for cell in cells)
        if any(texts):
            name = cells[0].column
            facts.append(_Fact(name, texts, _difference(runs, name, values)))
    return facts


def _difference(runs: Sequence[RunEntry], name: str, values: Sequence[float | None]) -> str:
    """Returns the change from the first to the second number: points for shares, else a ratio."""
    if len(values) != 2 or name in ("duration", "started"):
        return ""
    first, second = values
    if first is None or second is None:
        return ""
    if name in ("result", "float"):
        outcomes = [run.outcome for run in runs]
        kinds = {(each.metric, each.is_share) for each in outcomes if each is not None}
        if len(kinds) != 1:
            return ""
        _, is_share = kinds.pop()
        gain = second - first
        return f"{100 * gain:+.2f} points" if is_share else f"{gain:+.4g}"
    if first == second:
        return "the same"
    return f"{second / first:.3g} times" if first > 0 else ""


def _page(folder: RunsFolder, run: RunEntry, notes: list[str]) -> PageRun | None:
    """Reads a run with settings and page content; returns None if its manifest is unreadable."""
    place = folder.inside(run.path)
    if place is None or run.state == "broken":
        notes.append(f"{run.path}: {run.error or 'the folder cannot be read.'}")
        return None
    try:
        manifest = read_manifest(place)
    except (CheckpointError, OSError) as error:
        notes.append(f"{run.path}: {error}")
        return None
    return PageRun(run.path, manifest, _document(folder, run, manifest, notes))


def _document(folder: RunsFolder, run: RunEntry, manifest: Manifest, notes: list[str]) -> Document:
    if manifest.state != "finished":
        return Document(run.path)
    try:
        with open_plain(folder.root / run.path / FILE, "report") as file:
            return parse_document(parse_json(file.read()), FILE)
    except FileNotFoundError:
        return Document(run.path)
    except (ChopError, OSError) as error:
        notes.append(f"{run.path}: {getattr(error, 'strerror', None) or error}")
        return Document(run.path)


def _drawn(
    pages: Sequence[PageRun], notes: list[str]
) -> tuple[PageTable | None, tuple[Picture, ...]]:
    """Returns tiles and common charts, and notes charts that cannot be drawn."""
    if len(pages) < 2:
        return None, ()
    try:
        return compared_tiles(pages), tuple(map(picture, common_charts(pages)))
    except Exception as error:  # rows of unequal length, among others
        notes.append(f"Charts cannot be drawn ({type(error).__name__}).")
        return None, ()


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[_Fact]:
    """Returns the settings that differ between runs; output folders are ignored."""
    names = [name for name in dict.fromkeys(n for each in settings for n in each) if name != "out"]
    facts = []
    for name in names[:MAX_SETTINGS]:
        texts = tuple(_text(each.get(name)) for each in settings)
        if len(set(texts)) > 1:
            facts.append(_Fact(name, texts))
    return facts


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        text = ", ".join(map(str, value))
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = "none" if text in ("", "{}") else text
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
