"""Study of attention: separate operations against fused scaled-dot-product attention.

Shapes: B rows of a batch, H heads, T tokens, D numbers of a head.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chop.base.displayed import Displayed
from chop.bench.clock import block_seconds
from chop.bench.outputs import largest_difference
from chop.bench.record import Comparison, Measured, format_bytes, format_ratio, format_seconds
from chop.bench.roofline import Roofline, measured_roofline
from chop.bench.timing import Variant, compare
from chop.studies.attention_implementations import (
    DTYPES,
    Case,
    added_mask,
    chosen_backend,
    implementations,
    naive_attention,
    random_inputs,
    visible_pairs,
)
from chop.studies.settings import BenchAttentionConfig
from chop.studies.short_runs import ShortRun, short_runs, short_runs_title


@dataclass(frozen=True)
class _AttentionRow:
    """Result of one implementation on one case.

    Attributes:
        case: problem size.
        way: "naive", "three kernels" or "fused".
        backend: kernel that torch chose for "fused". None for others.
        measured: measured times.
        moved_bytes: bytes moved, see `Case.moved_bytes`.
        share_of_roofline: shortest possible time for the bytes of "fused" and the required
            operations on the device, divided by the measured time.
        bound: roofline ceiling that determines the shortest time.
        error: the largest |result - result in float64| over all elements.
    """

    case: Case
    way: str
    backend: str | None
    measured: Measured
    moved_bytes: int
    share_of_roofline: float
    bound: str
    error: float | None

    def formatted(self) -> dict[str, Any]:
        """Formats the row for a table."""
        is_baseline = self.way == "naive"
        return {
            "dtype": self.case.dtype,
            "mask": self.case.mask,
            "way": self.way if self.backend is None else f"{self.way} ({_short(self.backend)})",
            "time": format_seconds(self.measured.seconds),
            "times as fast": "1" if is_baseline else format_ratio(self.measured.ratio),
            "moved": format_bytes(self.moved_bytes),
            "of ceiling": f"{self.share_of_roofline:.0%} {self.bound}",
            "error": "-" if self.error is None else f"{self.error:.1e}",
        }


@dataclass(frozen=True, repr=False)
class _AttentionComparison(Displayed):
    """Results of the attention study.

    Attributes:
        rows: results by case and implementation.
        comparisons: case name -> comparison with all times.
        rooflines: dtype name -> measured ceilings of the device.
        course: rows of the course table: naive and fused in the first dtype with the first mask.
    """

    rows: tuple[_AttentionRow, ...]
    comparisons: Mapping[str, Comparison]
    rooflines: Mapping[str, Roofline]
    course: tuple[ShortRun, ...]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Returns formatted rows by table title."""
        how = next(iter(self.comparisons.values())).how
        ceilings = [
            {
                "dtype": name,
                "copied": f"{roofline.bytes_per_second / 1e9:.1f} GB/s",
                "matrix products": f"{roofline.flops_per_second / 1e9:.1f} GFLOP/s",
            }
            for name, roofline in self.rooflines.items()
        ]
        by_shape: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            shape = "x".join(map(str, row.case.shape))
            by_shape.setdefault(f"Attention {shape} ({how})", []).append(row.formatted())
        return {
            **by_shape,
            self._short_runs_title: [row.formatted("naive", "fused") for row in self.course],
            "Ceilings of the device, measured": ceilings,
        }

    @property
    def _short_runs_title(self) -> str:
        comparison = next(iter(self.comparisons.values()))
        case = self.rows[0].case
        what = f"naive and fused, {case.dtype}, mask {case.mask}"
        return short_runs_title(
            comparison.environment["device"], what, self.course, comparison["fused"]
        )


def _short(backend: str) -> str:
    return backend.removesuffix("_attention")


def bench_attention(config: BenchAttentionConfig) -> _AttentionComparison:
    """Measures all shapes, dtypes and masks."""
    combined = itertools.product(config.shapes, config.dtypes, config.masks)
    cases = [Case.parse(*parts) for parts in combined]
    rooflines = _rooflines(config)
    comparisons, rows, course = {}, [], []
    for case in cases:
        comparison, own = _measure(case, config, rooflines[case.dtype])
        comparisons[case.name] = comparison
        rows += own
        if (case.dtype, case.mask) == (config.dtypes[0], config.masks[0]):
            shape, block = "x".join(map(str, case.shape)), block_seconds(config.how["seconds"])
            pair = comparison["naive"], comparison["fused"]
            course += short_runs(shape, *pair, config.iterations, block)
    return _AttentionComparison(tuple(rows), comparisons, rooflines, tuple(course))


def _rooflines(config: BenchAttentionConfig) -> dict[str, Roofline]:
    before = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        return {name: measured_roofline(DTYPES[name], config.device) for name in config.dtypes}
    finally:
        torch.set_num_threads(before)


def _measure(
    case: Case, config: BenchAttentionConfig, roofline: Roofline
) -> tuple[Comparison, list[_AttentionRow]]:
    inputs = random_inputs(case, config.seed, config.device)
    visible = visible_pairs(case, config.device)
    calls = {name: partial(way, *inputs) for name, way in implementations(case, visible).items()}
    comparison = compare([Variant(name, call) for name, call in calls.items()], **config.how)
    errors = _errors_against_float64(calls, inputs, visible)
    backend = chosen_backend(inputs, visible, case.mask == "causal")
    least, flops = case.moved_bytes("fused"), case.needed_flops
    floor, bound = roofline.floor_seconds(least, flops), roofline.bound(least, flops)
    rows = [
        _AttentionRow(
            case=case,
            way=each.name,
            backend=backend if each.name == "fused" else None,
            measured=each,
            moved_bytes=case.moved_bytes(each.name),
            share_of_roofline=floor / comparison.decisive_seconds(each.name),
            bound=bound,
            error=errors[each.name],
        )
        for each in comparison
    ]
    return comparison, rows


def _errors_against_float64(
    calls: Mapping[str, Callable[[], Tensor]], inputs: Sequence[Tensor], visible: Tensor | None
) -> dict[str, float | None]:
    """Returns the largest difference of each result from attention in float64."""
    q, k, v = (x.double() for x in inputs)
    added = added_mask(visible, torch.float64)
    with torch.inference_mode():
        exact = [naive_attention(q, k, v, added)]
        return {name: largest_difference([call()], exact, name) for name, call in calls.items()}
