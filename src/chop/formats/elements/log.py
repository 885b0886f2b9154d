"""Power-of-two elements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from chop.formats.elements.element import Element, Rounding
from chop.formats.exponents import exp2, floor_log2

EXPONENT_LIMIT = 500
"""Largest exponent: beyond the range of float32, and small enough for exact float64 scales."""


@dataclass(frozen=True)
class Log2(Element):
    """Numbers s 2^E with -bias <= E <= 2^(width-1) - 1 - bias.

    Attributes:
        width: bits per element, including the sign.
        bias: exponent bias.
        nearest: `log` rounds log2 |x|, `linear` rounds to the nearest value, ties up.
        zero_code: makes the code of the lowest exponent zero; smaller values round to zero.
            Without it there is no zero: zeros of either sign become +2^-bias.
    """

    width: int
    bias: int
    nearest: Literal["log", "linear"] = "log"
    zero_code: bool = False

    @property
    def rounding(self) -> Rounding:  # type: ignore[override]
        """Rounding in the domain of `nearest`."""
        return "nearest_log" if self.nearest == "log" else "nearest_up"

    @property
    def has_zero(self) -> bool:  # type: ignore[override]
        """True if a code means zero."""
        return self.zero_code

    @property
    def lowest_exponent(self) -> int:
        """E of the smallest magnitude."""
        return max(self.zero_code - self.bias, -EXPONENT_LIMIT)

    @property
    def largest_exponent(self) -> int:
        """E of the largest magnitude."""
        largest: int = 2 ** (self.width - 1) - 1 - self.bias
        return min(largest, EXPONENT_LIMIT)

    @property
    def largest(self) -> float:
        """Largest magnitude."""
        return 2.0**self.largest_exponent

    def round(self, x: Tensor) -> Tensor:
        """Rounds each value to a power of two."""
        below = floor_log2(x).clamp(-1022, 1023)
        # No float equals the square root of two, so there are no ties in the log domain.
        increment_threshold = math.sqrt(2) if self.nearest == "log" else 1.5
        wanted = below + (x.abs() / exp2(below) >= increment_threshold)
        y = exp2(wanted.clamp(self.lowest_exponent, self.largest_exponent))
        y = torch.where(x < 0, -y, y)
        if self.zero_code:
            y = y.masked_fill(self._underflows(x, wanted), 0.0)
        return y.masked_fill(x.isnan(), torch.nan)

    def _underflows(self, x: Tensor, wanted: Tensor) -> Tensor:
        if self.nearest == "log":
            return wanted < self.lowest_exponent
        return x.abs() < 2.0 ** (self.lowest_exponent - 1)

    def codes(self, y: Tensor) -> Tensor:
        """Returns codes: the sign, then E + bias."""
        exponent = floor_log2(y) + self.bias
        return exponent.masked_fill(y == 0, 0) | ((y < 0).long() << self.width - 1)

    def values(self, codes: Tensor) -> Tensor:
        """Returns the numbers of codes."""
        field = codes & 2 ** (self.width - 1) - 1
        exponent = (field - self.bias).clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)
        y = exp2(exponent) * (1 - 2 * (codes >> self.width - 1))
        return y.masked_fill(field == 0, 0.0) if self.zero_code else y
