"""Element: the base class of a format's element types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, final

from torch import Tensor

from chop.formats.packing import (
    TRITS_PER_BYTE,
    pack_bits,
    pack_trits,
    unpack_bits,
    unpack_trits,
)
from chop.formats.statistic import Threshold

Rounding = Literal["nearest_even", "nearest_up", "nearest_log", "floor", "stochastic", "threshold"]
"""Which element stands for a value between two: the nearest one, ties to the even code or up, or
the nearest logarithm; the lower one; one that is drawn; or what a threshold says."""


class Element(ABC):
    """A finite set of numbers, each with a code of `width` bits. What lies beyond saturates.

    All tensors are float64 (values) or int64 (codes), of any shape: formats convert.
    """

    width: int
    nan_code: int = 0
    """The code that NaN is stored with; only some elements have one that means NaN."""
    rounding: Rounding = "nearest_even"
    threshold: Threshold | float | None = None
    """The magnitude up to which values become zero, before any scale, which follows the others;
    a rule until `Layout.fitted`; None for none."""
    radix: int = 2
    """Codes are packed by their bits; or by digits, 3, as many as a byte holds."""
    has_zero: bool = False
    """True where zero is an element, and zeros stay what they are."""
    follows: bool = True
    """False where elements, such as signs, only part values, and are not near them."""

    @property
    @abstractmethod
    def largest(self) -> float:
        """The largest magnitude."""

    @property
    def lowest(self) -> float:
        """The lowest number."""
        return -self.largest

    @property
    def highest(self) -> float:
        """The highest number."""
        return self.largest

    @abstractmethod
    def round(self, x: Tensor) -> Tensor:
        """The element that stands for each value; infinities saturate, NaN stays NaN."""

    def step(self, x: Tensor) -> Tensor | None:
        """The distance between the elements on both sides of each value, of a shape that expands.

        None where elements do not lie an even step apart in the neighborhood of a value.
        """
        return None

    @abstractmethod
    def codes(self, y: Tensor) -> Tensor:
        """The codes, 0 to 2^width - 1, of values that `round` gave; none of them is NaN."""

    @abstractmethod
    def values(self, codes: Tensor) -> Tensor:
        """The values of codes."""

    def saturates(self, x: Tensor) -> Tensor:
        """True beyond the largest magnitude (NaN: False)."""
        return x.abs() > self.largest

    def stored(self, y: Tensor) -> Tensor:
        """The codes of values that `round` gave, NaN included."""
        is_nan = y.isnan()
        return self.codes(y.masked_fill(is_nan, 0.0)).masked_fill(is_nan, self.nan_code)

    @final
    @property
    def bits(self) -> float:
        """Bits that a code takes in memory."""
        return float(self.width) if self.radix == 2 else 8 / TRITS_PER_BYTE

    @final
    def fills_bytes(self, count: int) -> bool:
        """True where so many packed codes end with a byte."""
        return (self.width * count % 8 if self.radix == 2 else count % TRITS_PER_BYTE) == 0

    @final
    def pack(self, codes: Tensor) -> Tensor:
        """uint8, one-dimensional: codes one after the other in row-major order."""
        return pack_bits(codes, self.width) if self.radix == 2 else pack_trits(codes)

    @final
    def unpack(self, packed: Tensor, count: int) -> Tensor:
        """Inverse of `pack`: integers, (count,)."""
        if self.radix == 2:
            return unpack_bits(packed, self.width, count)
        return unpack_trits(packed, count)
