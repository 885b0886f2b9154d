"""Rows as a table: for the terminal, for a text file, and as Markdown for a report."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.files import write_text

TEXT_COLUMNS = 160


def print_table(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | None = None,
    save_path: str | Path | None = None,
) -> None:
    """Prints rows to the terminal, and to a text file too if `save_path` is given.

    Args:
        title: above the table.
        rows: one mapping per row; nothing is printed when there is none.
        columns: which keys, in which order; None takes those of the first row.
        save_path: a text file; its folder is made.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    columns = list(rows[0]) if columns is None else columns
    table = Table(title=title)
    for column in columns:
        left = isinstance(rows[0][column], str)
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_spell(row[column])) for column in columns))
    Console().print(table)
    if save_path is not None:
        text = io.StringIO()
        Console(file=text, width=TEXT_COLUMNS).print(table)
        write_text(save_path, text.getvalue())


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table, one line each.

    >>> print(markdown_table([{"bits": 8, "accuracy": 0.5}]))
    | bits | accuracy |
    | --- | --- |
    | 8 | 0.5 |
    """
    if not rows:
        return ""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(map(_spell, row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _spell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
