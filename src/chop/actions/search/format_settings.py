"""Settings of candidate number formats for `chop search precision` and `sensitivity`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from chop.actions.sweep.grid import parse_range, whole
from chop.base.notices import warn_once
from chop.config import MORE, Range
from chop.errors import ConfigError

if TYPE_CHECKING:
    from chop.formats import NumberFormat
    from chop.problems.mixed_precision.circuit import CircuitSettings
    from chop.problems.mixed_precision.problem import PrecisionProblem, Score
    from chop.train import Rows
    from chop.workloads.workload import Workload

LANGUAGE_MODEL_DEFAULTS = {"operands": ("weight",), "bias": "float"}
"""Default operands and biases for language models, which a recipe can express."""
DEFAULTS = {"operands": ("data_in", "weight"), "bias": "8.mse"}


@dataclass(frozen=True)
class FormatSettings:
    """Candidate number formats.

    Attributes:
        formats: formats by name, such as integer, mxint or 4.auto. Names use their default fields;
            `all` means every format that has one of the widths and ranges; `4.auto` or
            `mxint:width=4` are single formats.
        widths: bit widths, as 2,4,8 or 2:8:1. They apply to formats given by name; numbers are
            separated by commas, ranges are `first:last:step`. Formats of one width keep it.
            Default: as usual for the job.
        ranges: values of further fields, by field. Example: `block_size=16,32`. Default: none.
        rule: calibration of fractions and exponent biases: mse (least squared error), minmax
            (nothing saturates) or percentile (one value in 1,000 saturates).
        operators: operators to quantize, by name: linear, conv2d ... Default: all with a weight.
        operands: operands in the chosen format: data_in, weight, bias. Default: data_in and weight;
            for language models (causal-lm) weight.
        per: `layer` for one choice per layer, `operand` for one per operand of a layer.
        bias: format of biases. Default: 8.mse; for language models float.
        calibration_rows: training rows that calibrate scales.
        eval_batch_size: batch size of the evaluation. Default: chosen for speed.
    """

    USUAL_WIDTHS: ClassVar[str | None] = None

    formats: tuple[str, ...] = ("integer",)
    widths: str | int | tuple[int, ...] | None = None
    ranges: Mapping[str, tuple[Any, ...]] = field(default_factory=dict, metadata=MORE)
    rule: Literal["mse", "minmax", "percentile"] = field(default="mse", metadata=MORE)
    operators: tuple[str, ...] | None = field(default=None, metadata=MORE)
    operands: tuple[str, ...] | None = field(default=None, metadata=MORE)
    per: Literal["layer", "operand"] = field(default="layer", metadata=MORE)
    bias: str | None = field(default=None, metadata=MORE)
    calibration_rows: Annotated[int, Range(1, 10**9)] = field(default=256, metadata=MORE)
    eval_batch_size: Annotated[int | None, Range(1, 10**6)] = field(default=None, metadata=MORE)

    def read_formats(self) -> None:
        """Replaces `all` by the names of the formats that take the ranges, and checks the settings.

        Raises:
            ConfigError: if a setting is wrong; before anything is loaded.
        """
        from chop.formats import parse_format_string
        from chop.problems.mixed_precision.candidates import every_format
        from chop.quantization.named_operators import check_operators

        if "all" in self.formats:
            if len(self.formats) > 1:
                raise ConfigError("formats: 'all' includes every format; leave the others out.")
            every = every_format()
            object.__setattr__(self, "formats", every)
            fitting = every_format(self.all_ranges(), self.rule)
            # Without any, `candidates` says what is wrong.
            object.__setattr__(self, "formats", fitting or every)
            if others := [name for name in every if name not in self.formats]:
                warn_once(
                    f"formats: {', '.join(others)} of 'all' cannot have these ranges or widths, "
                    "and are not searched."
                )
        self.candidates()
        if self.bias is not None:
            parse_format_string(self.bias)
        if self.operators is not None:
            check_operators(self.operators)

    def all_ranges(self) -> dict[str, tuple[Any, ...]]:
        """Returns the values by field, including widths."""
        from chop.problems.mixed_precision.candidates import get_fields

        widths = self.widths
        if widths is not None and "width" in self.ranges:
            raise ConfigError("widths and ranges.width mean the same: use only one of them.")
        if widths is None and any("width" in get_fields(given) for given in self.formats):
            widths = self.USUAL_WIDTHS
        usual = {} if widths is None else {"width": whole(parse_range(widths, "widths"), "widths")}
        return {**usual, **self.ranges}

    def problem(
        self,
        workload: Workload,
        rows: Rows,
        goal: Score | None = "metric",
        training: Mapping[str, Any] | None = None,
        joined: bool = False,
    ) -> PrecisionProblem:
        """Returns the mixed-precision problem of a workload, measured on `rows`.

        The other arguments are those of `PrecisionProblem`.
        """
        from chop.problems.mixed_precision.problem import PrecisionProblem
        from chop.train import CAUSAL_LM
        from chop.workloads.workload import raise_for_integers, raise_to_graph

        own = self._problem_settings()
        usual = LANGUAGE_MODEL_DEFAULTS if workload.task.name == CAUSAL_LM else DEFAULTS
        circuit = self.circuit()
        mg = raise_to_graph(workload) if circuit is None else raise_for_integers(workload)
        if circuit is not None:  # a float bias has no circuit
            usual = {**usual, "bias": DEFAULTS["bias"]}
        own |= {name: value for name, value in usual.items() if own[name] is None}
        return PrecisionProblem(
            mg,
            workload.train,
            rows,
            ranges=self.all_ranges(),
            batch_size=self.eval_batch_size,
            goal=goal,
            task=workload.task,
            training=training,
            joined=joined,
            circuit=circuit,
            evaluate=workload.judge,
            **own,
        )

    def circuit(self) -> CircuitSettings | None:
        """Returns the settings of the circuit whose costs are measured, or None."""
        return None

    def _problem_settings(self) -> dict[str, Any]:
        """Returns the settings that `PrecisionProblem` takes unchanged."""
        names = ("formats", "rule", "operators", "operands", "per", "bias", "calibration_rows")
        return {name: getattr(self, name) for name in names}

    def identity(self) -> dict[str, Any]:
        """Returns all settings that determine a result, as plain JSON."""
        return {**self._problem_settings(), "formats": list(self.candidates())}

    def candidates(self) -> dict[str, NumberFormat]:
        """Returns the candidate formats by format string, smallest widths first."""
        from chop.problems.mixed_precision.candidates import format_candidates

        return format_candidates(self.formats, self.all_ranges(), self.rule)
