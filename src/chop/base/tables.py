"""Tables of rows for the terminal, text files, Markdown and HTML."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chop.base.files import write_text

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

TEXT_COLUMNS = 160
LONGEST_WORD = 20
"""Longer words without a leading digit, such as paths, may be broken."""
MAX_KEYS = 2
"""Number of key columns repeated when a table is split."""
SHORT_PATH = 6
"""Minimum length of a repeated path prefix that is moved out of the rows."""
FEW_ROWS = 3
"""Number of rows from which a constant column becomes a line above the table."""
FRAME = 3
"""Characters that each column adds to its text; the table adds one more."""
NUMBER = re.compile(r"[-+~<>±(\[]*\d")
INTERVAL = re.compile(r" (?=\([-+\d.,e]+ to [-+\d.,e]+\)$)")
"""Space between a number and its interval, the only place where a cell may break."""
ONLY_NUMBER = re.compile(r"-|[-+~<>±]*[\d.,]+(e[-+]?\d+)?( ?[%a-zA-Zµ/]+)?")


def print_table(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | None = None,
    save_path: str | Path | None = None,
    *,
    leaves_out_alike: bool = False,
) -> None:
    """Prints rows as a table to the terminal, and writes them to a text file if requested.

    Numbers never break across lines. If the columns do not fit, several tables are printed, each
    with the key columns.

    Args:
        title: heading of the table.
        rows: one mapping per row. Nothing is printed for no rows.
        columns: keys in order. None uses those of the first row.
        save_path: text file, created with its folder.
        leaves_out_alike: replaces a constant column in the terminal by a line above the table, if
            there are enough rows.
    """
    from rich.console import Console

    if not rows:
        return
    all_columns = _columns(rows, columns)
    visible, constants = _without_alike(all_columns) if leaves_out_alike else (all_columns, [])
    console = Console()
    for table in _tables(title, visible, console.width, constants):
        console.print(table)
    if save_path is not None:
        write_text(save_path, _text(title, all_columns, TEXT_COLUMNS))


def text_table(
    title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> str:
    """Formats rows like `print_table`; "" for no rows."""
    from rich.console import Console

    return _text(title, _columns(rows, columns), Console().width) if rows else ""


def _text(title: str, columns: Sequence[_Column], width: int) -> str:
    from rich.console import Console

    text = io.StringIO()
    # Plain text, independent of notebooks and FORCE_COLOR.
    console = Console(
        file=text, width=width, color_system=None, force_terminal=False, force_jupyter=False
    )
    for table in _tables(title, columns, width):
        console.print(table)
    return text.getvalue()


def _columns(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> list[_Column]:
    names = list(rows[0]) if columns is None else columns
    return [_Column(printable(n), _aligned([format_cell(row[n]) for row in rows])) for n in names]


@dataclass(frozen=True)
class _Column:
    """Name of a column, and its cells as texts."""

    name: str
    cells: tuple[str, ...]

    @property
    def widest(self) -> int:
        """Length of the longest cell."""
        return max(map(len, self.cells))

    @property
    def least(self) -> int:
        """Length of the longest unbreakable word, such as a number with its unit."""
        words = (word for text in (self.name, *self.cells) for word in text.split())
        return max([1, *map(len, self._whole()), *map(_least, words)])

    def _whole(self) -> Iterator[str]:
        for cell in self.cells:
            number, *interval = INTERVAL.split(cell)
            if interval or ONLY_NUMBER.fullmatch(number):
                yield from (number, *interval)

    def broken(self, width: int) -> Iterator[str]:
        """Returns the cells for a column width, with intervals unbroken on their own line."""
        return (c if len(c) <= width else INTERVAL.sub("\n", c) for c in self.cells)

    @property
    def is_numeric(self) -> bool:
        return all(ONLY_NUMBER.fullmatch(cell) for cell in self.cells)


def _aligned(cells: Sequence[str]) -> tuple[str, ...]:
    """Aligns cells that consist of a number and a remark, such as its interval."""
    heads = [cell.partition(" ")[0] for cell in cells]
    if all(map(ONLY_NUMBER.fullmatch, cells)) or not all(map(ONLY_NUMBER.fullmatch, heads)):
        return tuple(cells)
    width = max(map(len, heads))
    return tuple(
        head.rjust(width) + cell[len(head) :] for head, cell in zip(heads, cells, strict=True)
    )


def _least(word: str) -> int:
    return len(word) if NUMBER.match(word) else min(len(word), LONGEST_WORD)


def _tables(
    title: str, columns: Sequence[_Column], width: int, remarks: Sequence[str] = ()
) -> Iterator[Table | Text]:
    """Yields the columns as one table, or as several if they do not fit.

    The first table has the complete title, followed by the `remarks` and lines on constant
    columns that are too wide.
    """
    from rich.cells import cell_len
    from rich.markup import escape as escape_markup
    from rich.table import Table
    from rich.text import Text

    titles = [printable(title), *remarks]
    if sum(max(each.widest, len(each.name)) + FRAME for each in columns) >= width:
        columns, alike = _factor_out(columns)
        titles += alike
    parts = _parts(columns, width - 1)
    for number, part in enumerate(parts, 1):
        place = "" if len(parts) == 1 else f"({number} of {len(parts)})"
        between = " " if len(titles[0]) + len(place) < width else "\n"
        first = [between.join(filter(None, (titles[0], place))), *titles[1:]]
        lines = first if number == 1 else [place]
        widths = _widths(part, width - 1)
        table = Table()
        if max(map(cell_len, lines)) > sum(widths) + FRAME * len(widths) + 1:
            # Rich wraps a title at the table's width, which may be a single narrow column.
            yield Text("\n".join(lines), style="table.title")
        else:
            table.title = escape_markup("\n".join(lines))
        for column, characters in zip(part, widths, strict=True):
            justify: Literal["left", "right"] = "right" if column.is_numeric else "left"
            table.add_column(
                escape_markup(column.name), justify=justify, overflow="fold", width=characters
            )
        cells = (column.broken(width) for column, width in zip(part, widths, strict=True))
        for row in zip(*cells, strict=True):
            table.add_row(*map(Text, row))
        yield table


def _without_alike(columns: Sequence[_Column]) -> tuple[list[_Column], list[str]]:
    """Returns the columns that vary, and lines on the constant ones.

    The first column stays, and so do all columns of a short table, which may be constant by chance.

    >>> rows = [_Column("layer", ("a", "b", "c")), _Column("bits", ("8", "8", "8"))]
    >>> varying, lines = _without_alike([*rows, _Column("bias", ("-", "-", "-"))])
    >>> [column.name for column in varying], lines
    (['layer'], ['every row: bits 8'])
    """
    alike = [each for each in columns[1:] if len(set(each.cells)) == 1]
    varying = [each for each in columns if each not in alike]
    if len(columns[0].cells) < FEW_ROWS or not alike:
        return list(columns), []
    lines = [f"{each.name} {each.cells[0].strip()}" for each in alike if each.cells[0] != "-"]
    return varying, [f"every row: {', '.join(lines)}"] if lines else []


def _factor_out(columns: Sequence[_Column]) -> tuple[list[_Column], list[str]]:
    """Removes a remark shared by several names and a path prefix shared by all cells of a column.

    Returns the shortened columns and lines with the removed text.

    >>> paths = tuple(f"model.layers.{i}.mlp" for i in range(3))
    >>> shortened, removed = _factor_out([_Column("layer", paths)])
    >>> shortened[0].cells, removed
    (('0.mlp', '1.mlp', '2.mlp'), ['layer: model.layers. ...'])
    """
    remarks: dict[str, list[str]] = {}
    heads = [column.name.partition(" (")[0] for column in columns]
    for column in columns:
        name, _, remark = column.name.partition(" (")
        if remark.endswith(")") and name and heads.count(name) == 1:
            remarks.setdefault(remark[:-1], []).append(name)
    shared = {remark: names for remark, names in remarks.items() if len(names) > 1}
    removed = [f"{', '.join(names)}: {remark}" for remark, names in shared.items()]
    shortened = []
    for column in columns:
        name, _, remark = column.name.partition(" (")
        start = _common_path(column.cells)
        if start:
            removed.append(f"{column.name}: {start} ...")
        name = name if name in shared.get(remark[:-1], ()) else column.name
        shortened.append(_Column(name, tuple(cell[len(start) :] for cell in column.cells)))
    return shortened, removed


def _common_path(cells: Sequence[str]) -> str:
    """Returns the common prefix of paths up to a dot, or "" if it is short or there are few."""
    parents = (cell.split(".")[:-1] for cell in cells)
    alike = takewhile(lambda names: len(set(names)) == 1, zip(*parents, strict=False))
    path = "".join(f"{names[0]}." for names in alike)
    is_path = len(cells) > 2 and len(path) >= SHORT_PATH and not re.search(r"[\s\d]", path)
    return path if is_path else ""


def _parts(columns: Sequence[_Column], width: int) -> list[list[_Column]]:
    """Splits columns into as few groups as fit, each with the key columns first."""
    if _taken(columns) <= width:
        return [list(columns)]
    keys = list(columns[:1])
    while len(keys) < MAX_KEYS and not _are_distinct(keys):
        keys.append(columns[len(keys)])
    while len(keys) > 1 and any(_taken([*keys, each]) > width for each in columns[len(keys) :]):
        keys.pop()
    parts = [keys[:]]
    for column in columns[len(keys) :]:
        if _taken([*parts[-1], column]) > width and len(parts[-1]) > len(keys):
            parts.append(keys[:])
        parts[-1].append(column)
    return parts


def _taken(columns: Sequence[_Column]) -> int:
    return sum(column.least + FRAME for column in columns)


def _are_distinct(columns: Sequence[_Column]) -> bool:
    rows = list(zip(*(column.cells for column in columns), strict=True))
    return len(set(rows)) == len(rows)


def _widths(columns: Sequence[_Column], width: int) -> list[int]:
    """Returns column widths: the minimum, extended to unbroken cells, then to unbroken names."""
    widths = [column.least for column in columns]
    spare = width - _taken(columns)
    for wanted in ([c.widest for c in columns], [len(c.name) for c in columns]):
        for i in sorted(range(len(columns)), key=lambda i: wanted[i] - widths[i]):
            given = min(max(0, wanted[i] - widths[i]), max(0, spare))
            widths[i] += given
            spare -= given
    return widths


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Formats rows as a Markdown table with one line per row.

    >>> print(markdown_table([{"bits": 8, "accuracy": 0.5}]))
    | bits | accuracy |
    | --- | --- |
    | 8 | 0.5 |
    """
    if not rows:
        return ""
    lines = [map(_markdown_cell, rows[0]), ["---"] * len(rows[0])]
    lines += [map(_markdown_cell, row.values()) for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _markdown_cell(value: Any) -> str:
    r"""Formats a cell on one line with escaped bars.

    >>> print(_markdown_cell("a|b"))
    a\|b
    """
    return " ".join(format_cell(value).split("\n")).replace("|", r"\|")


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Formats rows as an HTML table on one line.

    >>> html_table([{"bits": 8}])
    '<table><thead><tr><th>bits</th></tr></thead><tbody><tr><td>8</td></tr></tbody></table>'
    """
    if not rows:
        return ""
    head = "".join(f"<th>{escape(printable(name))}</th>" for name in rows[0])
    cells = (
        "".join(f"<td>{escape(format_cell(value))}</td>" for value in row.values()) for row in rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def write_markdown(path: str | Path, *parts: str | Sequence[Mapping[str, Any]] | None) -> None:
    """Writes paragraphs and tables to a Markdown file atomically.

    Args:
        path: output file, created with its folder.
        parts: texts, and tables as rows, in order. Empty ones are skipped.
    Raises:
        WriteError: if the disk is full or read-only, or `path` cannot be a file.
    """
    texts = (part if isinstance(part, str) else markdown_table(part) for part in parts if part)
    write_text(path, "\n\n".join(texts) + "\n")


def _format(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_cell(value: Any) -> str:
    """Formats a cell: floats with four digits, None as a dash, control characters visible."""
    return "\n".join(map(printable, _format(value).split("\n")))


def printable(text: str) -> str:
    r"""Escapes control characters of untrusted text for a terminal or one line of a file.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
