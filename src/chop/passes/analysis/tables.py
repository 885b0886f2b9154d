"""Rows of plain data as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def show(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    save_path: str | Path | None = None,
) -> None:
    """Prints a table, and writes it to a text file too if `save_path` is given."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", show_lines=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(row[column])) for column in columns))
    Console().print(table)
    if save_path is not None:
        path = Path(save_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            Console(file=file, width=160).print(table)
