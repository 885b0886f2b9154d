"""Short runs: speed-ups that a few sequential calls of each variant would report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.bench.break_even import compile_seconds
from chop.bench.clock import BLOCK_SECONDS
from chop.bench.record import Measured, format_seconds
from chop.statistics.intervals import LEVEL, LEVEL_TEXT

ITERATIONS = (5, 50, 200)
"""Numbers of calls in courses and blog posts."""
RUNS = 4
DRAWS = 1000
MAX_BLOCKS = 1000
"""Maximum number of blocks averaged; more would not reduce the variance further."""
TIMERS = (
    "Run 1 is cold: `time` without a warm-up. Later runs are warm, like all runs of "
    "torch.utils.benchmark, which makes two calls before timing"
)


@dataclass(frozen=True)
class ShortRun:
    """Result of timing some calls of one variant, followed by as many of another.

    Attributes:
        case: measured case.
        iterations: calls per variant.
        run: run number. Run 1 has no warm-up, so its mean includes the first call and the
            compilation. Later runs are warm.
        baseline_seconds: time per call of the baseline.
        seconds: time per call of the other variant.
        low: lower end of the range that contains `LEVEL` of the warm speed-ups.
        high: upper end of that range.
    """

    case: str
    iterations: int
    run: int
    baseline_seconds: float
    seconds: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """Speed-up that the run reports."""
        return self.baseline_seconds / self.seconds

    def formatted(self, baseline: str, other: str) -> dict[str, Any]:
        """Formats both times and their ratio as a table row."""
        spread = None if self.run == 1 else f"{self.low:.2f} to {self.high:.2f}"
        return {
            "case": self.case,
            "iterations": self.iterations,
            "run": f"{self.run}, {'cold' if self.run == 1 else 'warm'}",
            baseline: format_seconds(self.baseline_seconds),
            other: format_seconds(self.seconds),
            "times as fast": f"{self.ratio:.3g}",
            f"{LEVEL_TEXT} of runs": spread,
        }


def short_runs(
    case: str,
    baseline: Measured,
    other: Measured,
    iterations: Sequence[int] = ITERATIONS,
    block_seconds: float = BLOCK_SECONDS,
) -> list[ShortRun]:
    """Simulates four runs for each number of calls from one measurement.

    The first run takes (first call + (n - 1) s) / n per call, with s seconds in the steady state. A
    later run is the mean of enough measured blocks for n calls. Its range comes from 1000 runs of
    randomly drawn blocks, independently for each variant, as in sequential measurements. A block
    averages its calls, so for fewer calls than a block the real range is wider.

    Args:
        case: measured case: model and batch, or shape.
        baseline: measurement of the baseline, such as eager.
        other: measurement of the other variant, such as the compiled model.
        iterations: numbers of calls.
        block_seconds: duration of a measured block, see `chop.bench.clock.block_seconds`.
    """
    rows = []
    for count in iterations:
        draw = torch.Generator().manual_seed(count)
        before = _means_of_calls(baseline, count, block_seconds, draw)
        after = _means_of_calls(other, count, block_seconds, draw)
        ratios = before / after
        low, high = (ratios.quantile(end).item() for end in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        pairs = [(_cold(baseline, count), _cold(other, count))]
        pairs += zip(before[: RUNS - 1].tolist(), after[: RUNS - 1].tolist(), strict=True)
        rows += [ShortRun(case, count, n, *pair, low, high) for n, pair in enumerate(pairs, 1)]
    return rows


def short_runs_title(device: str, what: str, rows: Sequence[ShortRun], other: Measured) -> str:
    """Returns the table title, which explains why short runs mislead."""
    first = rows[0]
    share = compile_seconds(other) / (first.iterations * first.seconds)
    return (
        f"The course's table: {what}, {device}. {TIMERS}. Why it misleads: the first "
        f"call takes {share:.1%} of a run of {first.iterations} calls of {other.name} without a "
        "warm-up, so their mean mostly measures that call. Later runs have no interval, because "
        "the variants are timed one after the other"
    )


def _cold(measured: Measured, count: int) -> float:
    return (compile_seconds(measured) + (count - 1) * measured.seconds) / count


def _means_of_calls(
    measured: Measured, count: int, block_seconds: float, draw: torch.Generator
) -> Tensor:
    """Returns seconds per call (DRAWS,), each from enough blocks for `count` calls."""
    times = torch.tensor(
        [r.wall if r.device is None else r.device for r in measured.readings], dtype=torch.float64
    )
    in_a_block = max(1, round(block_seconds / measured.seconds))
    blocks = min(MAX_BLOCKS, math.ceil(count / in_a_block))
    return times[torch.randint(len(times), (DRAWS, blocks), generator=draw)].mean(dim=1)
