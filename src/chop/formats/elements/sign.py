"""Sign elements of one bit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.formats.elements.element import Element, Rounding


@dataclass(frozen=True)
class Sign(Element):
    """Values {-1, +1}, or {0, 1}. Zeros of either sign become +1.

    Attributes:
        bipolar: False for {0, 1}.
        stochastic: draws the upper value with probability clip((x + 1)/2, 0, 1) from torch's
            global generator instead of taking the sign.
    """

    bipolar: bool
    stochastic: bool
    width: int = 1
    follows: bool = False

    @property
    def rounding(self) -> Rounding:  # type: ignore[override]
        """Rounding by the sign, with zeros up, or at random."""
        return "stochastic" if self.stochastic else "nearest_up"

    @property
    def largest(self) -> float:
        """1."""
        return 1.0

    @property
    def lowest(self) -> float:
        """-1, or 0."""
        return -1.0 if self.bipolar else 0.0

    def round(self, x: Tensor) -> Tensor:
        """Returns the value for each sign or draw."""
        upper = torch.rand_like(x) < (x + 1) / 2 if self.stochastic else x >= 0
        y = self.values(upper.long())
        return y.masked_fill(x.isnan(), torch.nan)

    def codes(self, y: Tensor) -> Tensor:
        """Returns 1 for the upper value."""
        return (y > 0).long()

    def values(self, codes: Tensor) -> Tensor:
        """Returns the numbers of codes."""
        return (2 * codes - 1 if self.bipolar else codes).double()
