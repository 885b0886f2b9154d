"""Rows as a table: for the terminal, and as Markdown for a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def print_table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints rows to the terminal; the columns are the keys of the first row."""
    from rich.console import Console
    from rich.table import Table

    if not rows:
        return
    table = Table(title=title)
    for column, value in rows[0].items():
        table.add_column(column, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*(_spell(value) for value in row.values()))
    Console().print(table)


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
