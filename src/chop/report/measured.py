"""Tables of measured rows: numbers with intervals, and ranges over seeds."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from chop.base.files import write_csv
from chop.report.report import Block, Cell, Note, Report, Table, Writer, show, write_document
from chop.statistics.intervals import LEVEL_TEXT
from chop.train import Metric
from chop.train.intervals import format_cell

LEAST, GREATEST = "{} (least)", "{} (greatest)"
"""Names of the columns for the range of a number over seeds. The column itself has the mean."""
LOW, HIGH = f"{{}} ({LEVEL_TEXT} low)", f"{{}} ({LEVEL_TEXT} high)"
"""Names of the columns for the confidence interval of a single model's number."""
NUMBERS = ("bits", "seconds")
"""Columns of fractions that are not shares."""
TIMES = ("seconds",)
"""Columns that differ between identical runs."""
R = TypeVar("R")


@dataclass(frozen=True)
class MeasuredTable:
    """Table of measured rows with an optional paragraph below it.

    Attributes:
        title: heading of the printed table.
        rows: rows with equal columns. Fractions are printed in percent except for `NUMBERS`;
            bits have two decimals, and numbers are printed with their `LOW` and `HIGH`.
        measured: column -> its metric, which determines how its numbers and ranges are printed.
        note: paragraph below the table.
        unprinted: columns that only the CSV file has.
        times: columns written to a separate file, so that tables of identical runs are identical.
    """

    title: str
    rows: Sequence[Mapping[str, Any]]
    measured: Mapping[str, Metric] = field(default_factory=dict)
    note: str = ""
    unprinted: Collection[str] = ()
    times: Collection[str] = ()

    @property
    def blocks(self) -> list[Block]:
        """Returns the table and its note as report blocks."""
        metrics = dict(self.measured)
        for column, metric in self.measured.items():
            metrics |= {LEAST.format(column): metric, GREATEST.format(column): metric}
        ends = {end.format(column) for column in self.rows[0] for end in (LOW, HIGH)}
        hidden = {*self.unprinted, *self.times, *ends}
        columns = [n for n in self.rows[0] if n not in hidden]
        cells = [{n: _cell(n, row, metrics.get(n)) for n in columns} for row in self.rows]
        return [Table(self.title, cells), Note(self.note)]

    def write_csv(self, path: Path) -> None:
        """Writes all columns except times, with full precision."""
        self._write_columns(path, [n for n in self.rows[0] if n not in self.times])

    def write_times(self, path: Path) -> None:
        """Writes the duration of each row after its settings."""
        settings = itertools.takewhile(lambda n: n not in {*NUMBERS, *self.measured}, self.rows[0])
        self._write_columns(path, [*settings, *self.times])

    def _write_columns(self, path: Path, columns: Sequence[str]) -> None:
        write_csv(path, columns, ([row.get(n) for n in columns] for row in self.rows))

    def write(self, folder: Path) -> None:
        """Prints the table and writes `table.csv` and `table.md`."""
        self.write_csv(folder / "table.csv")
        write_document(folder / "table.md", show(*self.blocks))


def report_of_tables(
    tables: Mapping[str, MeasuredTable], result: R, figures: Mapping[str, Writer]
) -> Report[R]:
    """Builds a report whose tables each have a CSV and a Markdown file.

    Args:
        tables: stem of the files -> table. The first table is that of the manifest.
        result: return value of the job.
        figures: file name -> function that draws it.
    """
    first = next(iter(tables.values()))
    return Report(
        first.title,
        {f"{name}.md": table.blocks for name, table in tables.items()},
        result,
        first.rows,
        figures=figures,
        files={f"{name}.csv": table.write_csv for name, table in tables.items()}
        | {
            f"{'times' if name == 'table' else f'{name}-times'}.csv": table.write_times
            for name, table in tables.items()
            if table.times
        },
        result_file="",
    )


def over_seeds(
    stages: Mapping[str, Sequence[Mapping[str, float]]], number: str, ranged: bool
) -> dict[str, float]:
    """Returns columns of a row: the mean of a number over the seeds, and its range.

    Args:
        stages: column -> results, one for each distinct seed.
        number: key of the number in the results.
        ranged: adds the lowest and the highest value.

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


def compute_intervals(
    stages: Mapping[str, Sequence[Mapping[str, float]]],
) -> dict[str, float | None]:
    """Returns columns of a row: the 95 % interval of each stage of a single model.

    An interval is None if the model was measured by an earlier version without intervals.
    """
    return {
        column.format(stage): results[0].get(end)
        for stage, results in stages.items()
        for column, end in ((LOW, "low"), (HIGH, "high"))
    }


def get_seconds(stages: Mapping[str, Sequence[Mapping[str, float]]]) -> float | None:
    """Returns the duration of a row: the sum over its stages of the mean over the seeds.

    Returns None if a stage was measured by an earlier version, which recorded no duration.
    """
    taken = 0.0
    for results in stages.values():
        seconds = [result["seconds"] for result in results if "seconds" in result]
        if len(seconds) < len(results):
            return None
        taken += fmean(seconds)
    return round(taken, 2)


def list_points(
    rows: Sequence[Mapping[str, Any]], x: str, stage: str
) -> tuple[list[tuple[float, float]], dict[float, tuple[float, float]]]:
    """Returns the points of a curve, and their ranges over the seeds by x, if any."""
    points = [(row[x], row[stage]) for row in rows]
    ends = LEAST.format(stage), GREATEST.format(stage)
    return points, {row[x]: (row[ends[0]], row[ends[1]]) for row in rows if ends[0] in row}


def _cell(name: str, row: Mapping[str, Any], metric: Metric | None) -> Any:
    """Formats a cell: shares in percent with intervals in brackets; other columns unchanged."""
    value, low, high = (row.get(column) for column in (name, LOW.format(name), HIGH.format(name)))
    if metric is not None and isinstance(value, float):
        ends = None if low is None or high is None else (low, high)
        return Cell(value, format_cell(value, ends, metric))
    if not isinstance(value, float) or name in TIMES:
        return value
    return Cell.of(value, ".2f" if name in NUMBERS else ".2%")
