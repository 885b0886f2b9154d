"""When compiling has paid for itself, and what a short run would have shown instead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.bench.clock import BLOCK_SECONDS
from chop.bench.record import Measured

NEVER = "never"
DRAWS = 1000
TAIL = 0.05
MOST_BLOCKS = 1000
"""The mean of so many strays no more."""


@dataclass(frozen=True)
class BreakEven:
    """Calls after which compiling has paid for itself; infinite where it never does.

    Attributes:
        calls: at the measured ratio.
        low: at the upper bound of the ratio.
        high: at its lower bound.
    """

    calls: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isinf(self.calls):
            return NEVER
        return f"{self.calls:,.0f} ({self.low:,.0f} to {_count(self.high)})"


def break_even(eager: Measured, compiled: Measured) -> BreakEven:
    """(seconds of compiling - first eager call) / seconds that a call saves, rounded up, plus 1.

    A call saves eager (1 - 1 / ratio). Never where the interval of the ratio spans 1, or where
    compiled calls are slower; and where no interval is known nothing is shown.
    """
    start = compile_seconds(compiled) - eager.first_call_seconds

    def calls(ratio: float) -> float:
        saved = eager.seconds * (1 - 1 / ratio) if ratio > 0 else 0.0
        return 1.0 + max(0, math.ceil(start / saved)) if saved > 0 else math.inf

    ratio = compiled.ratio
    if compiled.speed_up is None or ratio.median <= 1:
        return BreakEven(math.inf, math.inf, math.inf)
    return BreakEven(calls(ratio.median), calls(ratio.high), calls(ratio.low))


def compile_seconds(compiled: Measured) -> float:
    """From `torch.compile` to the end of the first call; for eager, of its first call alone."""
    if compiled.prepare_seconds is None:
        return compiled.first_call_seconds
    return compiled.prepare_seconds


@dataclass(frozen=True)
class CourseRow:
    """What somebody would find who times some eager calls, and then as many compiled ones.

    Attributes:
        iterations: calls of each.
        counted: how many times as fast compiled is, its compile time among its calls.
        uncounted_low: the same without compile time: 5 % of such runs find less.
        uncounted_high: 5 % find more.
    """

    iterations: int
    counted: float
    uncounted_low: float
    uncounted_high: float


def course_rows(
    eager: Measured,
    compiled: Measured,
    iterations: Sequence[int],
    block_seconds: float = BLOCK_SECONDS,
) -> list[CourseRow]:
    """Every row from the same run, so that they differ by the number of iterations alone.

    Counted: (first eager call + (n - 1) e) / (compiling + (n - 1) c) for n calls of e and c
    seconds. Uncounted: 1000 runs drawn from the measured blocks, each variant's apart, as they
    are when one is measured after the other. A block averages its calls, so where it has more
    than n of them the real range is wider.

    Args:
        eager: times of the model as it is.
        compiled: times of the compiled one.
        iterations: numbers of calls, one for each row.
        block_seconds: of a measured block, see `chop.bench.clock.block_seconds`.
    """
    rows = []
    for count in iterations:
        later = count - 1
        before = eager.first_call_seconds + later * eager.seconds
        after = compile_seconds(compiled) + later * compiled.seconds
        draw = torch.Generator().manual_seed(count)
        found = _means_of_calls(eager, count, block_seconds, draw)
        found = found / _means_of_calls(compiled, count, block_seconds, draw)
        low, high = found.quantile(TAIL).item(), found.quantile(1 - TAIL).item()
        rows.append(CourseRow(count, before / after, low, high))
    return rows


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


def _count(calls: float) -> str:
    return NEVER if math.isinf(calls) else f"{calls:,.0f}"
