"""Short runs: the ratio that a few calls of one variant, and then of another, would have shown."""

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
"""Calls of the runs that courses and posts report."""
RUNS = 4
DRAWS = 1000
MOST_BLOCKS = 1000
"""The mean of so many strays no more."""
TIMERS = (
    "Run 1 is cold: by `time` without a warm-up. Later ones are warm, and so are all runs of "
    "torch.utils.benchmark, which calls twice before it times"
)


@dataclass(frozen=True)
class ShortRun:
    """What somebody finds who times some calls of one variant, and then as many of another.

    Attributes:
        case: what was run.
        iterations: calls of each.
        run: 1 begins without a warm-up, and has the first call and the compiler in its mean; what
            ran before warms up the others.
        baseline_seconds: of a call of the baseline.
        seconds: of a call of the other variant.
        low: how many times as fast warm runs are, at the lower end of `LEVEL` of them.
        high: the same at the upper end.
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
        """How many times as fast as the baseline the run finds the variant."""
        return self.baseline_seconds / self.seconds

    def formatted(self, baseline: str, other: str) -> dict[str, Any]:
        """For a table: both times and their ratio in one row."""
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
    """Four runs of each number of calls, all from one measurement.

    The first run takes (first call + (n - 1) s) / n for a call, in a steady state of s seconds. A
    later run is the mean of as many measured blocks as hold n calls; the range is that of 1000 runs
    from blocks drawn at random, each variant's apart, as they are when one is measured after the
    other. A block averages its calls, so where it has more than n of them the real range is wider.

    Args:
        case: what was run: model and batch, or shape.
        baseline: times of the variant that is compared with, such as eager.
        other: times of the other, such as the compiled one.
        iterations: numbers of calls.
        block_seconds: of a measured block, see `chop.bench.clock.block_seconds`.
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
    """Says above the table what it is, and why it misleads."""
    first = rows[0]
    share = compile_seconds(other) / (first.iterations * first.seconds)
    return (
        f"The course's table: {what}, {device}. {TIMERS}. Why it misleads: the first "
        f"call takes {share:.1%} of a run of {first.iterations} calls of {other.name} without a "
        "warm-up, whose mean says how long that call took and little of the others; and later runs "
        "have no interval, since one variant is timed after the other"
    )


def _cold(measured: Measured, count: int) -> float:
    return (compile_seconds(measured) + (count - 1) * measured.seconds) / count


def _means_of_calls(
    measured: Measured, count: int, block_seconds: float, draw: torch.Generator
) -> Tensor:
    """(DRAWS,) seconds of a call, each from as many blocks as hold so many calls."""
    times = torch.tensor(
        [r.wall if r.device is None else r.device for r in measured.readings], dtype=torch.float64
    )
    in_a_block = max(1, round(block_seconds / measured.seconds))
    blocks = min(MOST_BLOCKS, math.ceil(count / in_a_block))
    return times[torch.randint(len(times), (DRAWS, blocks), generator=draw)].mean(dim=1)
