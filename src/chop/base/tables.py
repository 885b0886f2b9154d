"""Rows as a table: for the terminal, for a text file, as Markdown and as HTML."""

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
"""Longer words without a digit at their start, such as paths, may be broken."""
MOST_KEYS = 2
"""Columns that are repeated where a table is cut into several."""
SHORT_PATH = 6
"""Characters of a path that is repeated in each row all the same."""
FEW_ROWS = 3
"""Rows from which on a column that says the same in each is a line above the table."""
FRAME = 3
"""Characters that each column adds to its text; the table adds one more."""
NUMBER = re.compile(r"[-+~<>±(\[]*\d")
INTERVAL = re.compile(r" (?=\([-+\d.,e]+ to [-+\d.,e]+\)$)")
"""The space between a number and its interval, where a cell may be broken, and nowhere else."""
ONLY_NUMBER = re.compile(r"-|[-+~<>±]*[\d.,]+(e[-+]?\d+)?( ?[%a-zA-Zµ/]+)?")


def print_table(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | None = None,
    save_path: str | Path | None = None,
    *,
    leaves_out_alike: bool = False,
) -> None:
    """Prints rows to the terminal, and to a text file too if `save_path` is given.

    No number is broken over two lines: where the columns do not fit beside one another, several
    tables are printed, each with the first columns again.

    Args:
        title: above the table.
        rows: one mapping per row; nothing is printed when there is none.
        columns: which keys, in which order; None takes those of the first row.
        save_path: a text file; its folder is made.
        leaves_out_alike: a column that says the same in every row of the terminal is a line above
            the table, where there are rows enough.
    """
    from rich.console import Console

    if not rows:
        return
    found = _columns(rows, columns)
    shown, said = _without_alike(found) if leaves_out_alike else (found, [])
    console = Console()
    for table in _tables(title, shown, console.width, said):
        console.print(table)
    if save_path is not None:
        write_text(save_path, _text(title, found, TEXT_COLUMNS))


def text_table(
    title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> str:
    """Rows as `print_table` prints them, as a text; "" of no rows."""
    from rich.console import Console

    return _text(title, _columns(rows, columns), Console().width) if rows else ""


def _text(title: str, columns: Sequence[_Column], width: int) -> str:
    from rich.console import Console

    text = io.StringIO()
    # Of a text alone: neither cells of notebooks nor FORCE_COLOR change it.
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
    return [_Column(printable(n), _aligned([shown(row[n]) for row in rows])) for n in names]


@dataclass(frozen=True)
class _Column:
    """A column's name, and its cells as texts."""

    name: str
    cells: tuple[str, ...]

    @property
    def widest(self) -> int:
        """Characters of the longest cell."""
        return max(map(len, self.cells))

    @property
    def least(self) -> int:
        """Characters of the longest word that stays whole, as a number with its unit does."""
        words = (word for text in (self.name, *self.cells) for word in text.split())
        return max([1, *map(len, self._whole()), *map(_least, words)])

    def _whole(self) -> Iterator[str]:
        for cell in self.cells:
            number, *interval = INTERVAL.split(cell)
            if interval or ONLY_NUMBER.fullmatch(number):
                yield from (number, *interval)

    def broken(self, width: int) -> Iterator[str]:
        """The cells for a column of so many characters: an interval is whole, on its own line."""
        return (c if len(c) <= width else INTERVAL.sub("\n", c) for c in self.cells)

    @property
    def is_numeric(self) -> bool:
        return all(ONLY_NUMBER.fullmatch(cell) for cell in self.cells)


def _aligned(cells: Sequence[str]) -> tuple[str, ...]:
    """Cells of a number and a remark, such as its interval, with the numbers under one another."""
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
    title: str, columns: Sequence[_Column], width: int, said: Sequence[str] = ()
) -> Iterator[Table | Text]:
    """The columns as one table, or as several where they do not fit beside one another.

    The first has the whole title, lines that are `said` below it, and what columns say alike where
    they are too wide.
    """
    from rich.cells import cell_len
    from rich.markup import escape as escape_markup
    from rich.table import Table
    from rich.text import Text

    titles = [printable(title), *said]
    if sum(max(each.widest, len(each.name)) + FRAME for each in columns) >= width:
        columns, alike = _said_once(columns)
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
            # Rich breaks a table's own title by the table, which may be of one narrow column.
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
    """The columns that tell rows apart, and a line on those that say the same in every row.

    The first column stays, as do all of a table of few rows, which may be alike by chance.

    >>> rows = [_Column("layer", ("a", "b", "c")), _Column("bits", ("8", "8", "8"))]
    >>> found, said = _without_alike([*rows, _Column("bias", ("-", "-", "-"))])
    >>> [column.name for column in found], said
    (['layer'], ['every row: bits 8'])
    """
    alike = [each for each in columns[1:] if len(set(each.cells)) == 1]
    varying = [each for each in columns if each not in alike]
    if len(columns[0].cells) < FEW_ROWS or not alike:
        return list(columns), []
    said = [f"{each.name} {each.cells[0].strip()}" for each in alike if each.cells[0] != "-"]
    return varying, [f"every row: {', '.join(said)}"] if said else []


def _said_once(columns: Sequence[_Column]) -> tuple[list[_Column], list[str]]:
    """The columns without the remark that several names end in, and the path that all cells of one
    begin with; and a line on each.

    >>> paths = tuple(f"model.layers.{i}.mlp" for i in range(3))
    >>> found, said = _said_once([_Column("layer", paths)])
    >>> found[0].cells, said
    (('0.mlp', '1.mlp', '2.mlp'), ['layer: model.layers. ...'])
    """
    remarks: dict[str, list[str]] = {}
    heads = [column.name.partition(" (")[0] for column in columns]
    for column in columns:
        name, _, remark = column.name.partition(" (")
        if remark.endswith(")") and name and heads.count(name) == 1:
            remarks.setdefault(remark[:-1], []).append(name)
    shared = {remark: names for remark, names in remarks.items() if len(names) > 1}
    said = [f"{', '.join(names)}: {remark}" for remark, names in shared.items()]
    found = []
    for column in columns:
        name, _, remark = column.name.partition(" (")
        start = _common_path(column.cells)
        if start:
            said.append(f"{column.name}: {start} ...")
        name = name if name in shared.get(remark[:-1], ()) else column.name
        found.append(_Column(name, tuple(cell[len(start) :] for cell in column.cells)))
    return found, said


def _common_path(cells: Sequence[str]) -> str:
    """What paths begin with, to a point; "" where that is short, or of few."""
    parents = (cell.split(".")[:-1] for cell in cells)
    alike = takewhile(lambda names: len(set(names)) == 1, zip(*parents, strict=False))
    path = "".join(f"{names[0]}." for names in alike)
    is_path = len(cells) > 2 and len(path) >= SHORT_PATH and not re.search(r"[\s\d]", path)
    return path if is_path else ""


def _parts(columns: Sequence[_Column], width: int) -> list[list[_Column]]:
    """Columns in as few groups as fit; each group begins with those that tell rows apart."""
    if _taken(columns) <= width:
        return [list(columns)]
    keys = list(columns[:1])
    while len(keys) < MOST_KEYS and not _tell_apart(keys):
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


def _tell_apart(columns: Sequence[_Column]) -> bool:
    rows = list(zip(*(column.cells for column in columns), strict=True))
    return len(set(rows)) == len(rows)


def _widths(columns: Sequence[_Column], width: int) -> list[int]:
    """Characters of each column: the least; then cells on one line, then names, while they fit."""
    found = [column.least for column in columns]
    spare = width - _taken(columns)
    for wanted in ([c.widest for c in columns], [len(c.name) for c in columns]):
        for i in sorted(range(len(columns)), key=lambda i: wanted[i] - found[i]):
            given = min(max(0, wanted[i] - found[i]), max(0, spare))
            found[i] += given
            spare -= given
    return found


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table, one line each.

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
    r"""A cell on one line, in which a bar ends no column.

    >>> print(_markdown_cell("a|b"))
    a\|b
    """
    return " ".join(shown(value).split("\n")).replace("|", r"\|")


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as an HTML table, one line.

    >>> html_table([{"bits": 8}])
    '<table><thead><tr><th>bits</th></tr></thead><tbody><tr><td>8</td></tr></tbody></table>'
    """
    if not rows:
        return ""
    head = "".join(f"<th>{escape(printable(name))}</th>" for name in rows[0])
    cells = ("".join(f"<td>{escape(shown(value))}</td>" for value in row.values()) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def write_markdown(path: str | Path, *parts: str | Sequence[Mapping[str, Any]] | None) -> None:
    """Writes paragraphs and tables to a Markdown file, in one step.

    Args:
        path: the file; its folder is made.
        parts: in order: texts, and tables as their rows; empty ones are left out.
    Raises:
        WriteError: the disk is full or read-only, or `path` can be no file.
    """
    texts = (part if isinstance(part, str) else markdown_table(part) for part in parts if part)
    write_text(path, "\n\n".join(texts) + "\n")


def _format(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def shown(value: Any) -> str:
    """A cell as text: floats with four digits, None as a dash, control characters visible."""
    return "\n".join(map(printable, _format(value).split("\n")))


def printable(text: str) -> str:
    r"""A text of somebody else's for a terminal or one line of a file: no control characters.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
