"""Settings of number formats that are chosen from, by `chop search precision` and `sensitivity`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from chop.actions.sweep.grid import parse_range, whole
from chop.config import MORE, Range
from chop.errors import ConfigError

if TYPE_CHECKING:
    from chop.formats import NumberFormat
    from chop.problems.mixed_precision.circuit import CircuitSettings
    from chop.problems.mixed_precision.problem import PrecisionProblem, Score
    from chop.train import Rows
    from chop.workloads.workload import Workload

OF_LANGUAGE_MODELS = {"operands": ("weight",), "bias": "float"}
"""What has a format where nobody says it: what a recipe can hold."""
OF_OTHERS = {"operands": ("data_in", "weight"), "bias": "8.mse"}


@dataclass(frozen=True)
class FormatSettings:
    """Candidate number formats.

    Attributes:
        formats: formats by name, such as integer, mxint or 4.auto. Names have each their usual
            fields; `all` are all of them; single formats are `4.auto` or `mxint:width=4`.
        widths: bit widths, as 2,4,8 or 2:8:1. They are those of the formats given by name: numbers
            by commas, or ranges `first:last:step`; formats of one width keep it. Default: usual for
            the job.
        ranges: values of further fields, by field. Example: `block_size=16,32`. Default: none.
        rule: calibration of fractions and exponent biases: mse (least squared error), minmax
            (nothing saturates) or percentile (one value in 1,000 saturates).
        operators: operators to quantize, by name: linear, conv2d ... Default: all with a weight.
        operands: operands in the chosen format: data_in, weight, bias. Default: data_in and weight;
            of language models (causal-lm) weight.
        per: `layer` for one choice per layer, `operand` for one per operand of a layer.
        bias: format of biases. Default: 8.mse; of language models float.
        calibration_rows: training rows that calibrate scales.
        eval_batch_size: rows of an evaluation step. Default: chosen for speed.
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
        """Names the formats that `all` stands for.

        Raises:
            ConfigError: a setting is wrong; nothing is loaded yet.
        """
        from chop.formats import parse_format_string
        from chop.problems.mixed_precision.candidates import every_format
        from chop.quantization.named_operators import check_operators

        if "all" in self.formats:
            if len(self.formats) > 1:
                raise ConfigError("formats: 'all' has every format; give it alone.")
            object.__setattr__(self, "formats", every_format())
        self.candidates()
        if self.bias is not None:
            parse_format_string(self.bias)
        if self.operators is not None:
            check_operators(self.operators)

    def all_ranges(self) -> dict[str, tuple[Any, ...]]:
        """Values by field, widths among them."""
        from chop.problems.mixed_precision.candidates import get_fields

        widths = self.widths
        if widths is not None and "width" in self.ranges:
            raise ConfigError("widths and ranges.width are the same: give one of them.")
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
        """The mixed-precision problem of a workload, measured on `rows`.

        The other arguments are those of `PrecisionProblem`.
        """
        from chop.problems.mixed_precision.problem import PrecisionProblem
        from chop.train import CAUSAL_LM
        from chop.workloads.workload import raise_for_integers, raise_to_graph

        own = self._of_problem()
        usual = OF_LANGUAGE_MODELS if workload.task.name == CAUSAL_LM else OF_OTHERS
        circuit = self.circuit()
        mg = raise_to_graph(workload) if circuit is None else raise_for_integers(workload)
        if circuit is not None:  # a float bias has no circuit
            usual = {**usual, "bias": OF_OTHERS["bias"]}
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
        """What a circuit is made for, whose costs are measured; None for no circuit."""
        return None

    def _of_problem(self) -> dict[str, Any]:
        """The settings that a problem takes as they are."""
        names = ("formats", "rule", "operators", "operands", "per", "bias", "calibration_rows")
        return {name: getattr(self, name) for name in names}

    def identity(self) -> dict[str, Any]:
        """All of these settings that a result depends on, as plain JSON."""
        return {**self._of_problem(), "formats": list(self.candidates())}

    def candidates(self) -> dict[str, NumberFormat]:
        """The formats to choose from by format string, those of few bits first."""
        from chop.problems.mixed_precision.candidates import format_candidates

        return format_candidates(self.formats, self.all_ranges(), self.rule)
