"""Ternary elements: one digit of -1, 0 or 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.formats.elements.element import Element, Rounding
from chop.formats.statistic import Threshold


@dataclass(frozen=True)
class Trit(Element):
    """Values {-1, 0, 1}: zero up to a threshold, otherwise the sign. Zero is always +0.

    Attributes:
        threshold: magnitude before scaling; a data-dependent `Threshold` must be fitted first.
    """

    threshold: Threshold | float
    width: int = 2
    nan_code: int = 1  # of zero
    rounding: Rounding = "threshold"
    follows: bool = False
    radix: int = 3

    @property
    def largest(self) -> float:
        """1."""
        return 1.0

    def round(self, x: Tensor) -> Tensor:
        """Returns the digit of each value."""
        assert isinstance(self.threshold, float)
        digits = torch.where(x.abs() > self.threshold, x.sign(), 0.0)
        return digits.masked_fill(x.isnan(), torch.nan)

    def codes(self, y: Tensor) -> Tensor:
        """Returns the digit plus 1."""
        return y.long() + 1

    def values(self, codes: Tensor) -> Tensor:
        """Returns the digits of codes."""
        return codes.double() - 1
