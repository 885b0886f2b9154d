"""Candidates of a compression, and the table that compares them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chop.ir.graph import MaseGraph
from chop.report.charts.accuracy import Curve
from chop.report.report import Cell, Table
from chop.statistics.intervals import LEVEL_TEXT, Interval
from chop.train import Metric, Task
from chop.train.intervals import Score

if TYPE_CHECKING:
    from chop.workloads.workload import Workload

POOR_FIT = " *"
"""Mark of a format that loses most of the weights of some layers."""
OPERATORS = "quantized operators"


@dataclass(frozen=True)
class Row:
    """Row of the table.

    Attributes:
        method: `float`, `PTQ` (rounded after training), rounding methods such as `GPTQ` or
            `AWQ+GPTQ`, or `QAT` (trained with rounding).
        format: format of data, weights and biases of the chosen operators.
        validation: metric on validation rows, by which the format is chosen.
        test: metric on test rows, for reporting only; `result.json` names it by the metric.
        bits: average storage per parameter of the whole model.
        quantized: number of quantized operators.
        size_kb: size of the parameters at those widths, in units of 1,000 bytes.
        poor_fit: note on layers that lose most of their weights to their format, or None.
        unreached: note on weights that cannot have a format, or None if they are few.
        validation_interval_95: interval of `validation`, see `chop.train.intervals`.
        test_interval_95: interval of `test`.
        left_alone: note on layers that the methods skipped, with reasons, or None.
    """

    method: str
    format: str
    validation: float
    test: float
    bits: float
    quantized: int
    size_kb: float
    poor_fit: str | None = None
    unreached: str | None = None
    validation_interval_95: Interval | None = None
    test_interval_95: Interval | None = None
    left_alone: str | None = None


@dataclass(frozen=True)
class Candidate:
    """A measured graph, and its metric with intervals by the name of the rows."""

    row: Row
    graph: MaseGraph
    scores: Mapping[str, Score]

    @property
    def is_judged(self) -> bool:
        """True if a function of the user computes the score, on its own rows for both splits."""
        return self.scores["validation"] is self.scores["test"]

    def tested_on(self, workload: Workload) -> str:
        """Returns the text " on N test rows" for a value; "" if there is only one number."""
        rows = self.scores["test"].rows
        return f" on {workload.count_test(rows)}" if rows else ""


def build_table(
    candidates: Sequence[Candidate], metric: Metric, test: str = "test"
) -> list[dict[str, Any]]:
    """Returns the table of candidates. `footnotes` explains its marks.

    Args:
        candidates: measured candidates.
        metric: metric of the task.
        test: name of the test rows, see `Workload.get_name`.
    """
    names = {"validation": "validation", "test": test}
    titles = {name: f"{title} ({LEVEL_TEXT} interval)" for name, title in names.items()}
    if candidates[0].is_judged:
        has_interval = any(candidate.scores["test"].interval for candidate in candidates)
        titles = {"test": f"{metric.name} ({LEVEL_TEXT} interval)" if has_interval else metric.name}
    return [
        {
            "method": row.method,
            "format": row.format + POOR_FIT * bool(row.poor_fit),
            **{
                title: Cell(scores[name].value, scores[name].format_cell(metric))
                for name, title in titles.items()
            },
            "bits": Cell.of(row.bits, ".2f"),
            OPERATORS: row.quantized,
            "weights (kB)": Cell.of(row.size_kb, ",.1f"),
        }
        for row, scores in ((candidate.row, candidate.scores) for candidate in candidates)
    ]


def terminal_table(
    title: str, candidates: Sequence[Candidate], metric: Metric, test: str = "test"
) -> Table:
    """Returns the table for 80 columns, without the operator counts of the document's table."""
    rows = build_table(candidates, metric, test)
    return Table(title, rows, [name for name in rows[0] if name != OPERATORS])


def outputs_tables(title: str, candidates: Sequence[Candidate], task: Task) -> list[Table]:
    """Returns the table of each output's metric on test rows; none for models with one output."""
    rows = []
    for candidate in candidates:
        parts = candidate.scores["test"].parts
        values = {
            name: Cell(value, task.metrics[name].format_value(value))
            for name, value in parts.items()
        }
        rows.append({"method": candidate.row.method, "format": candidate.row.format, **values})
    return [Table(title, rows)] if candidates[0].scores["test"].parts else []


def about_operators(candidates: Sequence[Candidate]) -> str:
    """Returns the number of quantized operators as a note; `table.md` has it by format."""
    counts = {c.row.quantized for c in candidates if c.row.method != "float"}
    least, most = min(counts, default=0), max(counts, default=0)
    return f"Quantized operators: {most if least == most else f'{least} to {most}, by format'}."


def printed_row(candidate: Candidate, metric: Metric) -> dict[str, Any]:
    """Returns a row for `result.json`, with the metric of each output if there are several."""
    fields = dataclasses.asdict(candidate.row)
    parts = candidate.scores["test"].parts
    outputs = {"outputs": dict(parts)} if parts else {}
    named = {metric.name if name == "test" else name: value for name, value in fields.items()}
    return {**named, **outputs}


def footnotes(candidates: Sequence[Candidate]) -> list[str]:
    """Returns notes on marked formats, weights without a format, and skipped layers."""
    fits = {
        c.row.format: c.row.poor_fit for c in candidates if c.row.method not in ("float", "QAT")
    }
    unreached = dict.fromkeys(c.row.unreached for c in candidates if c.row.unreached)
    skipped = dict.fromkeys(c.row.left_alone for c in candidates if c.row.left_alone)
    return [*(f"* {name}: {text}" for name, text in fits.items() if text), *unreached, *skipped]


def build_curves(rows: Sequence[Row]) -> list[Curve]:
    """Returns curves of the metric on test rows over bits, one per method and kind of format."""
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        if row.method != "float":
            points.setdefault((row.method, _kind(row.format)), []).append((row.bits, row.test))
    return [Curve(f"{method}, {kind}", each) for (method, kind), each in points.items()]


def _kind(label: str) -> str:
    name = re.split(r"\W", label)[0]
    if name != "integer":
        return name
    return "derived fractions" if label.endswith("auto") else "fixed fractions"
