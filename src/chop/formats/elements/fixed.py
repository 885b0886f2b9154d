"""Symmetric fixed point: whole steps up to the same limit on both sides of zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from chop.formats.elements.element import Element


@dataclass(frozen=True)
class Fixed(Element):
    """Numbers k 2^-frac_width, |k| <= 2^(width-1) - 1; or 0 <= k <= 2^width - 1 if unsigned.

    To nearest, ties to even, saturating.

    Attributes:
        width: bits per element.
        frac_width: binary places.
        code: how k is stored. Only `sign_magnitude` tells -0 from +0.
    """

    width: int
    frac_width: int
    code: Literal["twos_complement", "sign_magnitude", "unsigned"]

    @property
    def largest_code(self) -> int:
        """The largest k."""
        return 2 ** (self.width - (self.code != "unsigned")) - 1

    @property
    def largest(self) -> float:
        """2^-frac_width times the largest k."""
        return self.largest_code * 2.0**-self.frac_width

    def round(self, x: Tensor) -> Tensor:
        """The nearest step."""
        lowest = 0 if self.code == "unsigned" else -self.largest_code
        steps = (x * 2.0**self.frac_width).round().clamp(lowest, self.largest_code)
        if self.code != "sign_magnitude":
            steps = steps + 0.0  # turns -0 into +0
        return steps * 2.0**-self.frac_width

    def saturates(self, x: Tensor) -> Tensor:
        """True where a value rounds to a step beyond the limits."""
        steps = (x * 2.0**self.frac_width).round()
        below = steps < 0 if self.code == "unsigned" else steps < -self.largest_code
        return below | (steps > self.largest_code)

    def codes(self, y: Tensor) -> Tensor:
        """k in the chosen code."""
        steps = (y * 2.0**self.frac_width).long()
        if self.code == "sign_magnitude":
            return steps.abs() | (y.signbit().long() << self.width - 1)
        return steps & 2**self.width - 1

    def values(self, codes: Tensor) -> Tensor:
        """The numbers; sign-magnitude zeros keep their sign."""
        if self.code == "unsigned":
            return codes.double() * 2.0**-self.frac_width
        sign = codes >> self.width - 1
        if self.code == "twos_complement":
            return (codes - (sign << self.width)).double() * 2.0**-self.frac_width
        magnitude = (codes & self.largest_code).double() * 2.0**-self.frac_width
        return magnitude * (1 - 2 * sign)
