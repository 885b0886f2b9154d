"""Fixed-point elements: evenly spaced numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from chop.formats.elements.element import Element


@dataclass(frozen=True)
class Fixed(Element):
    """Numbers k 2^-frac_width, |k| <= 2^(width-1) - 1; or 0 <= k <= 2^width - 1 if unsigned.

    Attributes:
        width: bits per element.
        frac_width: fraction bits.
        code: representation of k. Only `sign_magnitude` distinguishes -0 from +0.
        is_symmetric: False adds k = -2^(width-1), as in two's complement.
        rounding: to nearest, ties to even; or down.
    """

    width: int
    frac_width: int
    code: Literal["twos_complement", "sign_magnitude", "unsigned"]
    is_symmetric: bool = True
    rounding: Literal["nearest_even", "floor"] = "nearest_even"
    has_zero = True

    @property
    def lowest_code(self) -> int:
        """Smallest k."""
        return 0 if self.code == "unsigned" else -self.largest_code - (not self.is_symmetric)

    @property
    def largest_code(self) -> int:
        """Largest k."""
        codes: int = 2 ** (self.width - (self.code != "unsigned"))
        return codes - 1

    @property
    def largest(self) -> float:
        """2^-frac_width times the largest |k|."""
        return max(-self.lowest_code, self.largest_code) * 2.0**-self.frac_width

    @property
    def highest(self) -> float:
        """2^-frac_width times the largest k."""
        return self.largest_code * 2.0**-self.frac_width

    @property
    def lowest(self) -> float:
        """2^-frac_width times the smallest k."""
        return self.lowest_code * 2.0**-self.frac_width

    def _steps(self, x: Tensor) -> Tensor:
        steps = x * 2.0**self.frac_width
        return steps.floor_() if self.rounding == "floor" else steps.round_()

    def round(self, x: Tensor) -> Tensor:
        """Rounds to the nearest step or down."""
        steps = self._steps(x).clamp_(self.lowest_code, self.largest_code)
        if self.code != "sign_magnitude":
            steps += 0.0  # turns -0 into +0
        return steps.mul_(2.0**-self.frac_width)

    def step(self, x: Tensor) -> Tensor:
        """Returns 2^-frac_width."""
        return x.new_full((), 2.0**-self.frac_width)

    def saturates(self, x: Tensor) -> Tensor:
        """Returns True if a value rounds to a step beyond the limits."""
        steps = self._steps(x)
        return (steps < self.lowest_code) | (steps > self.largest_code)

    def codes(self, y: Tensor) -> Tensor:
        """Returns k in the chosen representation."""
        steps = (y * 2.0**self.frac_width).long()
        if self.code == "sign_magnitude":
            return steps.abs() | (y.signbit().long() << self.width - 1)
        codes: Tensor = steps & 2**self.width - 1
        return codes

    def stored(self, y: Tensor) -> Tensor:
        """Returns k in the chosen representation; 0 for NaN."""
        return self.codes(y.nan_to_num(0.0))

    def values(self, codes: Tensor) -> Tensor:
        """Returns the numbers; sign-magnitude zeros preserve their sign."""
        if self.code == "unsigned":
            return codes.double() * 2.0**-self.frac_width
        sign = codes >> self.width - 1
        if self.code == "twos_complement":
            return (codes - (sign << self.width)).double() * 2.0**-self.frac_width
        magnitude = (codes & self.largest_code).double() * 2.0**-self.frac_width
        return magnitude * (1 - 2 * sign)
