"""What an element is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, Self

from torch import Tensor

from chop.formats.packing import pack_bits, unpack_bits

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
    is_absolute: bool = False
    """True where the element of a value does not depend on the scale that it is multiplied by."""
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

    @abstractmethod
    def round(self, x: Tensor) -> Tensor:
        """The element that stands for each value; infinities saturate, NaN stays NaN."""

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

    def scaled(self, y: Tensor, scale: Tensor) -> Tensor:
        """Elements times scales."""
        return y * scale

    def fitted(self, x: Tensor) -> Self:
        """The elements for a tensor; the same for every one, but where a threshold follows it."""
        return self

    def measured(self, groups: Tensor) -> Tensor:
        """What of groups their scales follow, NaN where nothing: by default all of it."""
        return groups

    @property
    def bits(self) -> float:
        """Bits that a code takes in memory."""
        return float(self.width)

    def fills_bytes(self, count: int) -> bool:
        """True where so many packed codes end with a byte."""
        return self.width * count % 8 == 0

    def pack(self, codes: Tensor) -> Tensor:
        """uint8, one-dimensional: codes one after the other in row-major order."""
        return pack_bits(codes, self.width)

    def unpack(self, packed: Tensor, count: int) -> Tensor:
        """Inverse of `pack`: integers, (count,)."""
        return unpack_bits(packed, self.width, count)
