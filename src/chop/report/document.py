"""Document of a run: what a page shows of its report, in a JSON file beside the manifest."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chop.base.files import latest
from chop.base.files.documents import read_json
from chop.base.tables import shown
from chop.config import parse
from chop.errors import CheckpointError, ConfigError
from chop.report.charts.chart import Chart, chart_in_words, finite
from chop.report.report import Block, Cell, Figure, Heading, Note, Report, Step, Table, Tile
from chop.report.words import in_words

FILE = "report.json"
MOST_ROWS = 1000
"""Rows of a table on a page; the others are in the files of the run."""
GROUPED = 1000
"""Whole numbers from which on digits are in groups."""
FORMAT = 1
LEADING = re.compile(r"\s*[~<>±]*([-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?)(?: ?([a-zA-Zµ]+))?")
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "kB": 1e3, "MB": 1e6, "GB": 1e9}
"""Units that a column may mix, in the base unit."""


@dataclass(frozen=True)
class PageTable:
    """A table.

    Attributes:
        title: above it.
        columns: their names.
        texts: by row: what is shown.
        values: by row: what the table is sorted by, and copied as; None where there is no number.
        shaded: columns with a color behind each number.
        left_out: rows that are not shown.
        kind: for JSON.
    """

    title: str
    columns: tuple[str, ...]
    texts: tuple[tuple[str, ...], ...]
    values: tuple[tuple[float | int | str | bool | None, ...], ...]
    shaded: tuple[str, ...] = ()
    left_out: int = 0
    kind: Literal["table"] = "table"


@dataclass(frozen=True)
class PageText:
    """A paragraph, or a heading of some level."""

    text: str
    level: int = 0
    kind: Literal["text"] = "text"


@dataclass(frozen=True)
class _PageTile:
    """A number that is shown first: see `chop.report.report.Tile`."""

    label: str
    value: float | int | str | None
    text: str
    note: str = ""


@dataclass(frozen=True)
class Document:
    """What a page shows of a run, its manifest aside.

    Attributes:
        title: of the run.
        verdict: the outcome in one sentence.
        warnings: what a reader must know before the numbers.
        tiles: the numbers that matter most.
        blocks: tables and sentences, in order.
        charts: the figures.
        tables: what only the page has.
        steps: next steps for the reader.
        assumptions: assumptions of the job. The page begins with them.
        format: version of the file's format.
    """

    title: str
    verdict: str = ""
    warnings: tuple[str, ...] = ()
    tiles: tuple[_PageTile, ...] = ()
    blocks: tuple[PageTable | PageText, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[PageTable, ...] = ()
    steps: tuple[Step, ...] = ()
    assumptions: tuple[str, ...] = ()
    format: int = FORMAT


def build_document(report: Report[Any]) -> Document:
    """What a page shows of a report."""
    charts: list[Chart] = []
    for figure in report.figures.values():
        if isinstance(figure, Figure):
            charts += [chart for chart in figure.charts if chart not in charts]
    return Document(
        report.title,
        report.verdict or next(iter(report.closing), ""),
        tuple(report.warnings),
        tuple(map(_tile, report.tiles)),
        tuple(_blocks(block for block in report.blocks if block.is_written)),
        tuple(chart_in_words(finite(chart)) for chart in (*charts, *report.charts)),
        tuple(map(page_table, report.tables)),
        tuple(report.steps),
        tuple(report.assumptions),
    )


def _tile(tile: Tile) -> _PageTile:
    return _PageTile(in_words(tile.label), _plain(tile.value.value), tile.value.text, tile.note)


def read_document(folder: Path) -> Document | None:
    """The document of a run's folder; None where an earlier version of `chop` wrote none.

    Raises:
        CheckpointError: it is broken, or of a later version of `chop`.
    """
    path = latest(folder / FILE)
    try:
        content = read_json(path, "report")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{path}' cannot be read: {error}.") from None
    return parse_document(content, str(path))


def parse_document(content: Mapping[str, Any], path: str) -> Document:
    """The document of a run from the content of its file.

    Raises:
        CheckpointError: it is broken, or of a later version of `chop`.
    """
    if content.get("format", FORMAT) != FORMAT:
        raise CheckpointError(
            f"'{path}' is of format {content['format']!r}, expected {FORMAT}: read it with the "
            "version of chop that wrote it."
        )
    try:
        document: Document = parse(Document, content)
    except ConfigError as error:
        raise CheckpointError(f"'{path}' is broken: {error}") from None
    return document


def _blocks(blocks: Iterable[Block]) -> Iterable[PageTable | PageText]:
    for block in blocks:
        if isinstance(block, Table) and block.rows:
            yield page_table(block)
        elif isinstance(block, Heading):
            yield PageText(block.text, block.level)
        elif isinstance(block, Note) and block.text:
            yield PageText(block.text)


def page_table(table: Table) -> PageTable:
    """A table as a page has it: texts, and the numbers behind them."""
    rows = table.rows[:MOST_ROWS]
    names = tuple(table.rows[0]) if table.rows else ()
    # Of a search of few trials, a column of its best after 100 would be empty.
    filled = [name for name in names if any(_text(row[name]).strip("- ") for row in rows)]
    names = tuple(filled) or names
    texts = tuple(tuple(_text(row[name]) for name in names) for row in rows)
    values = zip(*(_values([row[name] for row in rows]) for name in names), strict=True)
    left_out = len(table.rows) - len(rows)
    columns, shaded = (
        tuple(map(in_words, each))
        for each in (names, [name for name in table.shaded if name in names])
    )
    return PageTable(in_words(table.title), columns, texts, tuple(values), shaded, left_out)


def _text(cell: Any) -> str:
    """A cell as a page shows it: large counts in groups of three digits."""
    is_count = isinstance(cell, int) and not isinstance(cell, bool) and abs(cell) >= GROUPED
    return f"{cell:,}" if is_count else shown(cell)


def _values(cells: Sequence[Any]) -> list[float | int | str | bool | None]:
    """What a column is sorted by: numbers, also those at the start of all its texts, or texts."""
    plain = [cell.value if isinstance(cell, Cell) else cell for cell in cells]
    leading = [LEADING.match(cell) if isinstance(cell, str) else None for cell in plain]
    texts = [cell for cell in plain if isinstance(cell, str) and cell.strip("- ")]
    if texts and len(texts) == sum(match is not None for match in leading):
        return [
            _number(match) if match else _plain(cell)
            for cell, match in zip(plain, leading, strict=True)
        ]
    return [_plain(cell) for cell in plain]


def _number(match: re.Match[str]) -> float:
    return float(match[1].replace(",", "")) * UNITS.get(match[2] or "", 1.0)


def _plain(cell: Any) -> float | int | str | bool | None:
    """What JSON can hold; there are neither NaN nor infinities in it."""
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return cell if isinstance(cell, float | int | str | None) else str(cell)
