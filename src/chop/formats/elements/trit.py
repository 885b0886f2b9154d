"""Ternary element: one digit of -1, 0 or 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.formats.elements.element import Element, Rounding
from chop.formats.statistic import Threshold


@dataclass(frozen=True)
class Trit(Element):
    """{-1, 0, 1}: zero up to a threshold, else the sign. There is only +0.

    Attributes:
        threshold: of magnitudes, before any scale; one that follows tensors has to be fitted.
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
        """The digit of each value."""
        assert isinstance(self.threshold, float)
        digits = torch.where(x.abs() > self.threshold, x.sign(), 0.0)
        return digits.masked_fill(x.isnan(), torch.nan)

    def codes(self, y: Tensor) -> Tensor:
        """1 above the digit."""
        return y.long() + 1

    def values(self, codes: Tensor) -> Tensor:
        """The digits."""
        return codes.double() - 1
