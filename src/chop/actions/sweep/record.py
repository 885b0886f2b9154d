"""Sweep results: tables and figures, each written in one step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from chop.files import write_csv
from chop.tables import print_table, write_markdown
from chop.train import Metric
from chop.train.intervals import format_cell

FIGURE_SUFFIXES = (".svg", ".png")
LEAST, GREATEST = "{} (least)", "{} (greatest)"
"""Columns of the range of a number over the seeds; its own column has the mean."""
LOW, HIGH = "{} (95 % low)", "{} (95 % high)"
"""Columns of the interval of a number that one model has."""
NUMBERS = ("bits", "seconds")
"""Columns of fractions that are no shares."""


def write_table(
    folder: Path,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Metric] | None = None,
    note: str = "",
    name: str = "table",
    unprinted: Collection[str] = (),
) -> None:
    """Prints rows; writes `table.csv` with full precision, and `table.md` as printed.

    Args:
        folder: where to.
        title: above the printed table.
        rows: equal columns each; fractions are printed in percent, but for those of `NUMBERS`, and
            numbers together with their `LOW` and `HIGH`.
        measured: column -> its metric, which says how its numbers and their ranges are printed.
        note: a paragraph below the table, printed too.
        name: of the files.
        unprinted: columns of the CSV file alone.
    """
    metrics = dict(measured or {})
    for column, metric in (measured or {}).items():
        metrics |= {LEAST.format(column): metric, GREATEST.format(column): metric}
    columns = list(rows[0])
    ends = {end.format(column) for column in columns for end in (LOW, HIGH)}
    shown = [column for column in columns if column not in unprinted and column not in ends]
    write_csv(folder / f"{name}.csv", columns, ([row.get(n) for n in columns] for row in rows))
    texts = [{n: _format(n, row, metrics.get(n)) for n in shown} for row in rows]
    write_markdown(folder / f"{name}.md", texts, note)
    print_table(title, texts)
    if note:
        Console().print(note, highlight=False)


def write_figure(path: Path, plot: Callable[..., Path], *args: Any, **kwargs: Any) -> None:
    """Draws the same figure as `path.svg`, for a page, and `path.png`, for everything else."""
    for suffix in FIGURE_SUFFIXES:
        plot(path.with_name(path.name + suffix), *args, **kwargs)


def over_seeds(
    stages: Mapping[str, Sequence[Mapping[str, float]]], number: str, ranged: bool
) -> dict[str, float]:
    """Columns of a row: the mean of a number over the seeds, and its range.

    Args:
        stages: column -> results, one for each seed that makes a difference.
        number: which of the results.
        ranged: adds the least and the greatest.

    >>> over_seeds({"QAT": [{"accuracy": 0.5}, {"accuracy": 0.75}]}, "accuracy", True)
    {'QAT': 0.625, 'QAT (least)': 0.5, 'QAT (greatest)': 0.75}
    """
    columns = {}
    for stage, results in stages.items():
        values = [result[number] for result in results]
        columns[stage] = fmean(values)
        if ranged:
            columns |= {LEAST.format(stage): min(values), GREATEST.format(stage): max(values)}
    return columns


def intervals_of(stages: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, float | None]:
    """Columns of a row: the 95 % interval of each stage, of one model.

    None where an earlier version, which did not note it, has measured the model.
    """
    return {
        column.format(stage): results[0].get(end)
        for stage, results in stages.items()
        for column, end in ((LOW, "low"), (HIGH, "high"))
    }


def seconds_of(stages: Mapping[str, Sequence[Mapping[str, float]]]) -> float | None:
    """What a row took: the sum over its stages of the mean over the seeds.

    None where an earlier version, which did not note it, has measured one of them.
    """
    taken = 0.0
    for results in stages.values():
        seconds = [result["seconds"] for result in results if "seconds" in result]
        if len(seconds) < len(results):
            return None
        taken += fmean(seconds)
    return round(taken, 2)


def points_of(
    rows: Sequence[Mapping[str, Any]], x: str, stage: str
) -> tuple[list[tuple[float, float]], dict[float, tuple[float, float]]]:
    """The points of a curve, and their ranges over the seeds, by x where there are any."""
    points = [(row[x], row[stage]) for row in rows]
    ends = LEAST.format(stage), GREATEST.format(stage)
    return points, {row[x]: (row[ends[0]], row[ends[1]]) for row in rows if ends[0] in row}


def _format(name: str, row: Mapping[str, Any], metric: Metric | None) -> Any:
    """Shares as percentages, intervals in brackets; settings, bits and seconds as they are."""
    value, low, high = (row.get(column) for column in (name, LOW.format(name), HIGH.format(name)))
    if metric is not None and isinstance(value, float):
        return format_cell(value, None if low is None or high is None else (low, high), metric)
    return f"{value:.2%}" if isinstance(value, float) and name not in NUMBERS else value
