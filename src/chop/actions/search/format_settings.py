"""What may be chosen in a layer, as settings: shared by the precision and sensitivity jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from chop.actions.ptq import check_operators
from chop.actions.sweep.grid import spread, whole
from chop.actions.workload import Workload, raise_to_graph
from chop.errors import ConfigError
from chop.formats import parse_format_string
from chop.mixed_precision.candidates import Rule, fields_of, format_candidates
from chop.mixed_precision.problem import METRIC, PrecisionProblem, Score
from chop.train import Rows

FORMAT_RANGES: Mapping[str, tuple[float, float]] = {
    "calibration_rows": (1, 10**9),
    "eval_batch_size": (1, 10**6),
}


@dataclass(frozen=True)
class FormatSettings:
    """Formats to choose from, and for what.

    Attributes:
        formats: by name (`integer`, `mxint`), which stands for all of its usual settings, or one
            by one, as `4.auto` or `mxint:width=4`.
        widths: bits of the formats given by name: numbers, or ranges `first:last:step`. Formats of
            one width keep it. None: what is usual for the job.
        ranges: further fields of theirs -> values, as `block_size`, `exponent_width`.
        rule: how fractions and exponent biases are derived: mse, minmax or percentile.
        operators: the operators to quantise, by name; None takes all layers with a matrix.
        operands: what takes the chosen format: data_in, weight, bias.
        per: "layer" for one choice each, "operand" for one for each operand of a layer.
        bias: the format of biases.
        calibration_rows: training rows that scales are derived from.
        eval_batch_size: rows of a step of evaluation; None takes what is fast.
    """

    USUAL_WIDTHS: ClassVar[str | None] = None

    formats: tuple[str, ...] = ("integer",)
    widths: str | int | tuple[int, ...] | None = None
    ranges: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    rule: Rule = "mse"
    operators: tuple[str, ...] | None = None
    operands: tuple[str, ...] = ("data_in", "weight")
    per: Literal["layer", "operand"] = "layer"
    bias: str = "8.mse"
    calibration_rows: int = 256
    eval_batch_size: int | None = None

    def check_formats(self) -> None:
        """Raises ConfigError where a setting is wrong, before anything is loaded."""
        format_candidates(self.formats, self.all_ranges(), self.rule)
        parse_format_string(self.bias)
        if self.operators is not None:
            check_operators(self.operators)

    def all_ranges(self) -> dict[str, tuple[Any, ...]]:
        """Values by field, widths among them."""
        widths = self.widths
        if widths is not None and "width" in self.ranges:
            raise ConfigError("widths and ranges.width are the same: give one of them.")
        if widths is None and any("width" in fields_of(given) for given in self.formats):
            widths = self.USUAL_WIDTHS
        usual = {} if widths is None else {"width": whole(spread(widths, "widths"), "widths")}
        return {**usual, **self.ranges}

    def problem(
        self,
        workload: Workload,
        rows: Rows,
        goal: Score | None = METRIC,
        training: Mapping[str, Any] | None = None,
    ) -> PrecisionProblem:
        """What these settings leave to choose for a subject, measured on `rows`."""
        return PrecisionProblem(
            raise_to_graph(workload),
            workload.train,
            rows,
            formats=self.formats,
            ranges=self.all_ranges(),
            operators=self.operators,
            operands=self.operands,
            per=self.per,
            bias=self.bias,
            rule=self.rule,
            calibration_rows=self.calibration_rows,
            batch_size=self.eval_batch_size,
            goal=goal,
            task=workload.task,
            training=training,
        )

    def told(self) -> dict[str, Any]:
        """All of these settings that a result depends on, as plain JSON."""
        return {
            "formats": list(format_candidates(self.formats, self.all_ranges(), self.rule)),
            "rule": self.rule,
            "operators": self.operators,
            "operands": self.operands,
            "per": self.per,
            "bias": self.bias,
            "calibration_rows": self.calibration_rows,
        }


def spread_evenly(rows: Rows, count: int) -> Rows:
    """At most so many rows, spread evenly over all."""
    return rows.take(torch.linspace(0, len(rows) - 1, min(count, len(rows))).long())
