"""Ticks of an axis, and the mapping from numbers to pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chop.report.charts.scale import AxisScale, decades

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
WANTED = 6
"""Approximate number of ticks on a linear axis."""


@dataclass(frozen=True)
class Place:
    """Mapping from the numbers of an axis to pixels.

    Attributes:
        scale: range and kind of the axis.
        start: pixel of the lower end.
        end: pixel of the upper end.
        whole: places ticks at whole numbers only.
    """

    scale: AxisScale
    start: float
    end: float
    whole: bool = False

    def of(self, value: float) -> float:
        """Returns the pixel of a number, clamped to the ends."""
        low, high, at = map(self._linear, (self.scale.low, self.scale.high, value))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def _linear(self, value: float) -> float:
        if self.scale.kind == "linear":
            return value
        if self.scale.kind == "log":
            return math.log10(max(value, 1e-300))
        threshold = self.scale.threshold
        if abs(value) <= threshold:
            return value / threshold
        return math.copysign(1 + math.log10(abs(value) / threshold), value)

    @property
    def ticks(self) -> list[float]:
        """Returns round numbers between the ends, with 0 if there is space for it."""
        if self.scale.kind == "linear":
            return linear_ticks(self.scale.low, self.scale.high, self.whole)
        least = self.scale.low if self.scale.kind == "log" else self.scale.threshold
        powers = decades(least, self.scale.high)
        return powers if self.scale.kind == "log" else [0.0, *powers]


def linear_ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Returns about six round numbers from `low` to `high`.

    >>> linear_ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> linear_ticks(3.5, 6.5, whole=True)
    [4.0, 5.0, 6.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / WANTED
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in STEPS if power * factor >= rough * 0.999)
    step = max(1.0, math.ceil(step)) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(k * step, digits) for k in range(first, last + 1)]
