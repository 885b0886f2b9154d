"""Study of a linear layer with ReLU: separate operations against one fused call.

Shapes: M rows of inputs, K features of an input, N of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.displayed import Displayed
from chop.bench.clock import block_seconds
from chop.bench.outputs import largest_difference
from chop.bench.record import Comparison, Measured, format_bytes, format_ratio, format_seconds
from chop.bench.timing import Variant, compare
from chop.nn.fused import LinearActivation
from chop.studies.settings import BenchLinearConfig, parse_shape
from chop.studies.short_runs import ShortRun, short_runs, short_runs_title

NAIVE, CALLS, FUSED = "naive", "linear, relu", "fused"
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Case:
    """Problem size in float32.

    Attributes:
        rows: M.
        inputs: K.
        outputs: N.
    """

    rows: int
    inputs: int
    outputs: int

    @classmethod
    def parse(cls, shape: str) -> Case:
        """Parses a shape such as "128x768x3072".

        >>> Case.parse("128x768x3072").outputs
        3072
        """
        return cls(*parse_shape(shape, "rows x inputs x outputs", "128x768x3072"))

    @property
    def name(self) -> str:
        """Name in titles and file names."""
        return f"{self.rows}x{self.inputs}x{self.outputs}"

    def moved_bytes(self, way: str) -> int:
        """Returns the bytes read and written if nothing stays in a cache between operations.

        - "fused": MK + KN + N + MN numbers: inputs, weight and bias are read, the result is
          written. It is the minimum: on a CPU, ReLU is applied in place after the product and its
          bias.
        - "linear, relu": 2MN more, because ReLU reads and writes the result again.
        - "naive": 4MN more, because adding the bias does as well.
        """
        least = self.rows * self.inputs + self.outputs * (self.inputs + 1 + self.rows)
        trips = {FUSED: 0, CALLS: 2, NAIVE: 4}[way]
        return FLOAT_BYTES * (least + trips * self.rows * self.outputs)


@dataclass(frozen=True)
class _LinearRow:
    """Result of one implementation on one case.

    Attributes:
        case: problem size.
        measured: measured times.
        moved_bytes: counted bytes, see `Case.moved_bytes`.
        error: the largest |result - result in float64| over all elements.
    """

    case: Case
    measured: Measured
    moved_bytes: int
    error: float | None

    def formatted(self) -> dict[str, Any]:
        """Formats the row for a table."""
        way = self.measured.name
        return {
            "M x K x N": self.case.name,
            "way": way,
            "time": format_seconds(self.measured.seconds),
            "times as fast": "1" if way == NAIVE else format_ratio(self.measured.ratio),
            "moved at least": format_bytes(self.moved_bytes),
            "error": "-" if self.error is None else f"{self.error:.1e}",
        }


@dataclass(frozen=True, repr=False)
class _LinearComparison(Displayed):
    """Results of the linear study.

    Attributes:
        rows: results by case and implementation.
        comparisons: case name -> comparison with all times.
        course: rows of the course table: naive and fused.
    """

    rows: tuple[_LinearRow, ...]
    comparisons: Mapping[str, Comparison]
    course: tuple[ShortRun, ...]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Returns formatted rows by table title."""
        comparison = next(iter(self.comparisons.values()))
        device = comparison.environment["device"]
        title = short_runs_title(device, "naive and fused", self.course, comparison[FUSED])
        return {
            f"Linear and ReLU, separate operations and fused ({comparison.how})": [
                row.formatted() for row in self.rows
            ],
            title: [row.formatted(NAIVE, FUSED) for row in self.course],
        }


def bench_linear(config: BenchLinearConfig) -> _LinearComparison:
    """Measures all shapes."""
    comparisons, rows, course = {}, [], []
    for case in map(Case.parse, config.shapes):
        comparison, own = _measure(case, config)
        comparisons[case.name] = comparison
        rows += own
        pair, block = (comparison[NAIVE], comparison[FUSED]), block_seconds(config.how["seconds"])
        course += short_runs(case.name, *pair, config.iterations, block)
    return _LinearComparison(tuple(rows), comparisons, tuple(course))


def naive_linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Computes max(x W^T + b, 0) with one operation at a time.

    Args:
        x: (M, K), floating point.
        weight: (N, K).
        bias: (N,).
    Returns: (M, N).
    """
    return torch.relu(torch.matmul(x, weight.T) + bias)


def build_variants(layer: nn.Linear, x: Tensor) -> list[Variant]:
    """Returns the variants: separate operations, two calls, fused by oneDNN or torch.compile."""
    naive = partial(naive_linear_relu, x, layer.weight, layer.bias)
    calls = nn.Sequential(layer, nn.ReLU())
    fused = Variant(FUSED, prepare=partial(_fused, layer, x))
    return [Variant(NAIVE, naive), Variant(CALLS, partial(calls, x)), fused]


def _fused(layer: nn.Linear, x: Tensor) -> Callable[[], Tensor]:
    if x.is_cuda:
        call = partial(torch.compile(nn.Sequential(layer, nn.ReLU())), x)
    else:
        twin = nn.Linear(layer.in_features, layer.out_features, device="meta")
        twin.weight, twin.bias = layer.weight, layer.bias
        call = partial(LinearActivation.from_linear(twin, "relu"), x)
    call()
    return call


def _measure(case: Case, config: BenchLinearConfig) -> tuple[Comparison, list[_LinearRow]]:
    draw = torch.Generator().manual_seed(config.seed)
    x = torch.randn(case.rows, case.inputs, generator=draw).to(config.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        layer = nn.Linear(case.inputs, case.outputs).to(config.device).eval()
    variants = build_variants(layer, x)
    comparison = compare(variants, **config.how)
    with torch.inference_mode():
        parts = (x.double(), layer.weight.double(), layer.bias.double())
        exact = [naive_linear_relu(*parts)]
        results = {v.name: (v.call or v.prepare())() for v in variants}  # type: ignore[misc]
    rows = [
        _LinearRow(
            case=case,
            measured=each,
            moved_bytes=case.moved_bytes(each.name),
            error=largest_difference([results[each.name]], exact, each.name),
        )
        for each in comparison
    ]
    return comparison, rows
