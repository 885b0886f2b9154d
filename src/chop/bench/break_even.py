"""Break-even: the number of calls after which compiling has paid for itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chop.bench.record import Measured

NEVER = "never"


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


def compile_seconds(measured: Measured) -> float:
    """From `torch.compile` to the end of the first call; without a compiler, the first call."""
    if measured.prepare_seconds is None:
        return measured.first_call_seconds
    return measured.prepare_seconds


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


def _count(calls: float) -> str:
    return NEVER if math.isinf(calls) else f"{calls:,.0f}"
