"""What a sweep leaves behind: tables and figures, each written in one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from chop.files import write_csv
from chop.tables import print_table, write_markdown
from chop.train import Metric

FIGURE_SUFFIXES = (".svg", ".png")


def write_table(
    folder: Path,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Metric] | None = None,
    note: str = "",
) -> None:
    """Prints rows; writes `table.csv` with full precision, and `table.md` as printed.

    Args:
        folder: where to.
        title: above the printed table.
        rows: equal columns each; fractions are printed in percent, but for `bits`.
        measured: column -> its metric, which says how its numbers are printed.
        note: a paragraph below the table, printed too.
    """
    metrics = measured or {}
    columns = list(rows[0])
    write_csv(folder / "table.csv", columns, ([row.get(n) for n in columns] for row in rows))
    texts = [{n: _format(n, value, metrics.get(n)) for n, value in row.items()} for row in rows]
    write_markdown(folder / "table.md", texts, note)
    print_table(title, texts)
    if note:
        Console().print(note, highlight=False)


def write_figure(path: Path, plot: Callable[..., Path], *args: Any, **kwargs: Any) -> None:
    """Draws the same figure as `path.svg`, for a page, and `path.png`, for everything else."""
    for suffix in FIGURE_SUFFIXES:
        plot(path.with_name(path.name + suffix), *args, **kwargs)


def _format(name: str, value: Any, metric: Metric | None) -> Any:
    """Shares as percentages; settings and bits as they are."""
    if metric is not None and isinstance(value, float):
        return metric.format_value(value)
    return f"{value:.2%}" if isinstance(value, float) and name != "bits" else value
