"""Page content of a run, stored as JSON next to the manifest."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chop.base.files import latest
from chop.base.files.documents import read_json
from chop.base.tables import format_cell
from chop.config import parse
from chop.errors import CheckpointError, ConfigError
from chop.report.charts.chart import Chart, chart_in_words, finite
from chop.report.report import Block, Cell, Figure, Heading, Note, Report, Step, Table, Tile
from chop.report.words import in_words

FILE = "report.json"
MAX_ROWS = 1000
"""Maximum number of table rows on a page; the files of the run have all rows."""
GROUPED = 1000
"""Integers of at least this size have their digits grouped."""
FORMAT = 1
LEADING = re.compile(r"\s*[~<>±]*([-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?)(?: ?([a-zA-Zµ]+))?")
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "kB": 1e3, "MB": 1e6, "GB": 1e9}
"""Factors to the base unit, for columns that mix units."""


@dataclass(frozen=True)
class PageTable:
    """Table of a page.

    Attributes:
        title: heading of the table.
        columns: column names.
        texts: displayed texts by row.
        values: sort and copy keys by row. None for cells without a number.
        shaded: columns with a color behind each number.
        left_out: number of omitted rows.
        kind: type tag in JSON.
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
    """Paragraph, or a heading of some level."""

    text: str
    level: int = 0
    kind: Literal["text"] = "text"


@dataclass(frozen=True)
class _PageTile:
    """Headline number; see `chop.report.report.Tile`."""

    label: str
    value: float | int | str | None
    text: str
    note: str = ""


@dataclass(frozen=True)
class Document:
    """Page content of a run, without its manifest.

    Attributes:
        title: title of the run.
        verdict: outcome in one sentence.
        warnings: cautions to read before the numbers.
        tiles: headline numbers.
        blocks: tables and paragraphs, in order.
        charts: charts of the figures.
        tables: further tables that only the page shows.
        steps: suggested next steps.
        assumptions: assumptions of the job, shown at the top of the page.
        format: version of the file format.
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
    """Returns the page content of a report."""
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
    """Reads the page content of a run folder; returns None if the folder has no such file.

    Raises:
        CheckpointError: if the file is corrupt or from a later version of `chop`.
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
    """Parses page content from its JSON form.

    Raises:
        CheckpointError: if the content is invalid or from a later version of `chop`.
    """
    if content.get("format", FORMAT) != FORMAT:
        raise CheckpointError(
            f"'{path}' has format {content['format']!r}, expected {FORMAT}: read it with the "
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
    """Returns a table in page form: texts and sort keys."""
    rows = table.rows[:MAX_ROWS]
    names = tuple(table.rows[0]) if table.rows else ()
    # Columns such as the best after 100 trials are empty in short searches.
    filled = [name for name in names if any(_text(row[name]).strip("- ") for row in rows)]
    names = tuple(filled) or names
    texts = tuple(tuple(_text(row[name]) for name in names) for row in rows)
    values = zip(*(_values([row[name] for row in rows]) for name in names), strict=True)
    omitted = len(table.rows) - len(rows)
    columns, shaded = (
        tuple(map(in_words, each))
        for each in (names, [name for name in table.shaded if name in names])
    )
    return PageTable(in_words(table.title), columns, texts, tuple(values), shaded, omitted)


def _text(cell: Any) -> str:
    """Formats a cell for a page; large counts get thousands separators."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    is_count = isinstance(cell, int) and abs(cell) >= GROUPED
    return f"{cell:,}" if is_count else format_cell(cell)


def _values(cells: Sequence[Any]) -> list[float | int | str | bool | None]:
    """Returns sort keys of a column: leading numbers if all cells have one, else texts."""
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
    """Converts a cell to a JSON value; NaN and infinities become texts."""
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return cell if isinstance(cell, float | int | str | None) else str(cell)
