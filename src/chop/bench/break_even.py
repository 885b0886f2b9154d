"""Break-even point of compilation: the number of calls that repay the compile time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chop.bench.record import Measured

NEVER = "never"


@dataclass(frozen=True)
class BreakEven:
    """Number of calls that repay the compile time; infinite if compiled calls are not faster.

    Attributes:
        calls: at the measured ratio.
        low: at the upper bound of the ratio.
        high: at the lower bound of the ratio.
    """

    calls: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isinf(self.calls):
            return NEVER
        return f"{self.calls:,.0f} ({self.low:,.0f} to {_count(self.high)})"


def compile_seconds(measured: Measured) -> float:
    """Returns the seconds of `torch.compile` and the first call; eager, of the first call."""
    if measured.prepare_seconds is None:
        return measured.first_call_seconds
    return measured.prepare_seconds


def break_even(eager: Measured, compiled: Measured) -> BreakEven:
    """Returns the compile time divided by the time saved per call, rounded up, plus 1.

    The compile time is that of `compile_seconds` without the first eager call. A call saves
    eager (1 - 1 / ratio). The result is infinite if the interval of the ratio spans 1, if
    compiled calls are slower, or if there is no interval.
    """
    start = compile_seconds(compiled) - eager.first_call_seconds

    def calls(ratio: float) -> float:
        saved = eager.seconds * (1 - 1 / ratio) if ratio > 0 else 0.0
        return 1.0 + max(0, math.ceil(start / saved)) if saved > 0 else math.inf

    ratio = compiled.ratio
    if compiled.speed_up is None or ratio.median <= 1:
        return BreakEven(math.inf, math.inf, math.inf)
    return BreakEven(calls(ratio.median), calls(ratio.high), calls(ratio.low))


def _count(calls: float) -> str:
    return NEVER if math.isinf(calls) else f"{calls:,.0f}"
