"""Minifloat elements, with a hidden bit (IEEE 754) and without."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from chop.formats.elements.element import Element
from chop.formats.exponents import exp2, floor_log2

Variant = Literal["ieee", "fn", "finite"]
"""Meaning of the largest exponent codes: infinity and NaN, a single NaN, or numbers."""


def default_variant(width: int, exponent_width: int) -> Variant:
    """Returns OCP's variant: finite below 8 bits, one NaN for e4m3, IEEE for e5m2."""
    if width < 8:
        return "finite"
    return "fn" if exponent_width < 5 else "ieee"


@dataclass(frozen=True)
class Minifloat(Element):
    """Numbers s 2^E (1 + f/2^m), E >= 1 - bias, and s 2^(1-bias) f/2^m: IEEE 754, section 3.3.

    Values round to nearest, ties to even. Infinities and values beyond the largest finite number
    saturate.

    Attributes:
        exponent_width: bits of the exponent.
        mantissa_width: m, bits of the fraction, at least 1.
        bias: exponent bias.
        variant: meaning of the largest codes.
    """

    exponent_width: int
    mantissa_width: int
    bias: int
    variant: Variant
    has_zero = True

    @property
    def width(self) -> int:  # type: ignore[override]
        """Bits per element: sign, exponent, fraction."""
        return 1 + self.exponent_width + self.mantissa_width

    @property
    def lowest_exponent(self) -> int:
        """E of the smallest normal number and of all subnormal numbers."""
        return 1 - self.bias

    @property
    def largest_code(self) -> int:
        """Code of the largest finite number."""
        reserved = {"finite": 0, "fn": 1, "ieee": 2**self.mantissa_width}[self.variant]
        codes: int = 2 ** (self.width - 1) - 1 - reserved
        return codes

    @property
    def largest(self) -> float:
        """Largest finite number."""
        return _value_of_largest_code(self)

    @property
    def largest_exponent(self) -> int:
        """floor(log2) of the largest finite number."""
        return (self.largest_code >> self.mantissa_width) - self.bias

    @property
    def nan_code(self) -> int:  # type: ignore[override]
        """All ones for a single NaN; for `ieee` the first code with the fraction's top bit."""
        ones: int = 2 ** (self.width - 1) - 1
        quiet: int = ones - 2 ** (self.mantissa_width - 1) + 1
        return {"finite": 0, "fn": ones, "ieee": quiet}[self.variant]

    def round(self, x: Tensor) -> Tensor:
        """Rounds to the nearest number."""
        return _round(x, self.mantissa_width, self.lowest_exponent, self.largest)

    def step(self, x: Tensor) -> Tensor:
        """Returns the ulp of each value's binade."""
        return _ulp(x.clamp(-self.largest, self.largest), self.mantissa_width, self.lowest_exponent)

    def codes(self, y: Tensor) -> Tensor:
        """Returns codes: sign, exponent and fraction from the top bit down."""
        exponent = floor_log2(y).clamp(min=self.lowest_exponent)
        fraction = (y.abs() / exp2(exponent - self.mantissa_width)).long()
        # The hidden bit of a normal number carries into the exponent field, where it adds the 1
        # that sets normal from subnormal numbers apart.
        magnitude = (exponent - self.lowest_exponent << self.mantissa_width) + fraction
        return magnitude | (y.signbit().long() << self.width - 1)

    def values(self, codes: Tensor) -> Tensor:
        """Returns the numbers; codes above the largest finite number are infinity and NaN."""
        magnitude = codes & 2 ** (self.width - 1) - 1
        field = magnitude >> self.mantissa_width
        hidden = (field > 0).long() << self.mantissa_width
        fraction = hidden + (magnitude & 2**self.mantissa_width - 1)
        exponent = self.lowest_exponent + (field - 1).clamp(min=0)
        y: Tensor = fraction.double() * exp2(exponent - self.mantissa_width)
        y = y.masked_fill(magnitude > self.largest_code, torch.nan)
        if self.variant == "ieee":
            y = y.masked_fill(magnitude == self.largest_code + 1, torch.inf)
        return y * (1 - 2 * (codes >> self.width - 1))


@dataclass(frozen=True)
class Denormal(Element):
    """Numbers s 2^E k/2^m, -bias <= E <= 2^exponent_width - 1 - bias, 0 <= k < 2^m: no hidden bit.

    Values round to nearest, ties to even. A value just below 2^E may round up to the next binade.

    Attributes:
        exponent_width: bits of the exponent.
        mantissa_width: m, bits of k, at least 1.
        bias: exponent bias.
    """

    exponent_width: int
    mantissa_width: int
    bias: int
    has_zero = True

    @property
    def width(self) -> int:  # type: ignore[override]
        """Bits per element: sign, exponent, mantissa."""
        return 1 + self.exponent_width + self.mantissa_width

    @property
    def largest(self) -> float:
        """2^E (2^m - 1)/2^m for the largest E."""
        top = 2**self.exponent_width - 1 - self.bias
        magnitude: float = (2**self.mantissa_width - 1) * 2.0 ** (top - self.mantissa_width)
        return magnitude

    def round(self, x: Tensor) -> Tensor:
        """Rounds to the nearest number."""
        # In [2^(E-1), 2^E) the top bit of k is set: it does what a hidden bit would.
        return _round(x, self.mantissa_width - 1, -self.bias - 1, self.largest)

    def step(self, x: Tensor) -> Tensor:
        """Returns the ulp of each value's binade."""
        inside = x.clamp(-self.largest, self.largest)
        return _ulp(inside, self.mantissa_width - 1, -self.bias - 1)

    def codes(self, y: Tensor) -> Tensor:
        """Returns codes: sign, exponent (the smallest of several) and k from the top bit down."""
        exponent = (floor_log2(y) + 1).clamp(min=-self.bias)
        k = (y.abs() / exp2(exponent - self.mantissa_width)).long()
        magnitude = (exponent + self.bias << self.mantissa_width) + k
        return magnitude | (y.signbit().long() << self.width - 1)

    def values(self, codes: Tensor) -> Tensor:
        """Returns the numbers of codes."""
        magnitude = codes & 2 ** (self.width - 1) - 1
        k = magnitude & 2**self.mantissa_width - 1
        exponent = (magnitude >> self.mantissa_width) - self.bias
        y: Tensor = k.double() * exp2(exponent - self.mantissa_width)
        return y * (1 - 2 * (codes >> self.width - 1))


@cache
def _value_of_largest_code(element: Minifloat) -> float:
    return element.values(torch.tensor(element.largest_code, device="cpu")).item()


def _round(x: Tensor, mantissa_width: int, lowest_exponent: int, largest: float) -> Tensor:
    """Rounds to a multiple of the ulp, ties to even, and clamps."""
    ulp = _ulp(x, mantissa_width, lowest_exponent)
    return ((x / ulp).round() * ulp).clamp(-largest, largest)


def _ulp(x: Tensor, mantissa_width: int, lowest_exponent: int) -> Tensor:
    """Returns the ulp 2^(E-m) of each value's binade."""
    # 512 is beyond every float32 exponent, and keeps the ulp of infinity finite.
    return exp2(floor_log2(x).clamp(lowest_exponent, 512) - mantissa_width)
