"""Tables of measured rows: numbers with intervals, ranges over seeds, and their columns."""

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
"""Columns of the range of a number over the seeds; its own column has the mean."""
LOW, HIGH = f"{{}} ({LEVEL_TEXT} low)", f"{{}} ({LEVEL_TEXT} high)"
"""Columns of the interval of a number that one model has."""
NUMBERS = ("bits", "seconds")
"""Columns of fractions that are no shares."""
TIMES = ("seconds",)
"""Columns that differ between equal runs."""
R = TypeVar("R")


@dataclass(frozen=True)
class MeasuredTable:
    """Table of measured rows, with a paragraph below it.

    Attributes:
        title: above the printed table.
        rows: equal columns each; fractions are printed in percent, but for those of `NUMBERS`, and
            numbers together with their `LOW` and `HIGH`.
        measured: column -> its metric, which says how its numbers and their ranges are printed.
        note: the paragraph.
        unprinted: columns of the CSV file alone.
        times: columns that have a file of their own, so that tables of equal runs are equal.
    """

    title: str
    rows: Sequence[Mapping[str, Any]]
    measured: Mapping[str, Metric] = field(default_factory=dict)
    note: str = ""
    unprinted: Collection[str] = ()
    times: Collection[str] = ()

    @property
    def blocks(self) -> list[Block]:
        """The table and its note, for a report."""
        metrics = dict(self.measured)
        for column, metric in self.measured.items():
            metrics |= {LEAST.format(column): metric, GREATEST.format(column): metric}
        ends = {end.format(column) for column in self.rows[0] for end in (LOW, HIGH)}
        hidden = {*self.unprinted, *self.times, *ends}
        shown = [n for n in self.rows[0] if n not in hidden]
        cells = [{n: _cell(n, row, metrics.get(n)) for n in shown} for row in self.rows]
        return [Table(self.title, cells), Note(self.note)]

    def write_csv(self, path: Path) -> None:
        """Writes all columns but times, with full precision."""
        self._write_columns(path, [n for n in self.rows[0] if n not in self.times])

    def write_times(self, path: Path) -> None:
        """Writes how long each row took, after the settings that it is of."""
        settings = itertools.takewhile(lambda n: n not in {*NUMBERS, *self.measured}, self.rows[0])
        self._write_columns(path, [*settings, *self.times])

    def _write_columns(self, path: Path, columns: Sequence[str]) -> None:
        write_csv(path, columns, ([row.get(n) for n in columns] for row in self.rows))

    def write(self, folder: Path) -> None:
        """Prints the table; writes `table.csv`, and `table.md` as printed."""
        self.write_csv(folder / "table.csv")
        write_document(folder / "table.md", show(*self.blocks))


def report_of_tables(
    tables: Mapping[str, MeasuredTable], result: R, figures: Mapping[str, Writer]
) -> Report[R]:
    """Report whose tables each have a CSV and a Markdown file.

    Args:
        tables: stem of the files -> table; the first is that of the manifest.
        result: what the job returns.
        figures: by file.
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


def compute_intervals(
    stages: Mapping[str, Sequence[Mapping[str, float]]],
) -> dict[str, float | None]:
    """Columns of a row: the 95 % interval of each stage, of one model.

    None where an earlier version, which did not note it, has measured the model.
    """
    return {
        column.format(stage): results[0].get(end)
        for stage, results in stages.items()
        for column, end in ((LOW, "low"), (HIGH, "high"))
    }


def get_seconds(stages: Mapping[str, Sequence[Mapping[str, float]]]) -> float | None:
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


def list_points(
    rows: Sequence[Mapping[str, Any]], x: str, stage: str
) -> tuple[list[tuple[float, float]], dict[float, tuple[float, float]]]:
    """The points of a curve, and their ranges over the seeds, by x where there are any."""
    points = [(row[x], row[stage]) for row in rows]
    ends = LEAST.format(stage), GREATEST.format(stage)
    return points, {row[x]: (row[ends[0]], row[ends[1]]) for row in rows if ends[0] in row}


def _cell(name: str, row: Mapping[str, Any], metric: Metric | None) -> Any:
    """Shares as percentages, intervals in brackets; settings, bits and seconds as they are."""
    value, low, high = (row.get(column) for column in (name, LOW.format(name), HIGH.format(name)))
    if metric is not None and isinstance(value, float):
        ends = None if low is None or high is None else (low, high)
        return Cell(value, format_cell(value, ends, metric))
    is_share = isinstance(value, float) and name not in NUMBERS
    return Cell.of(value, ".2%") if is_share else value
