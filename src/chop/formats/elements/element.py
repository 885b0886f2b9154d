"""Base class of the element types of formats."""

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

Rounding = Literal[
    "nearest_even",
    "nearest_up",
    "nearest_down",
    "nearest_log",
    "floor",
    "stochastic",
    "threshold",
]
"""Rounding of values between two elements: to nearest with ties to the even code, up or down, to
the nearest logarithm, down, at random, or by a threshold.
"""


class Element(ABC):
    """Finite set of numbers with codes of `width` bits. Values beyond the ends saturate.

    Methods take and return float64 values and int64 codes of any shape.
    """

    width: int
    nan_code: int = 0
    """Code that stores NaN; only some elements decode it to NaN."""
    rounding: Rounding = "nearest_even"
    threshold: Threshold | float | None = None
    """Magnitude, before scaling, up to which values become zero; None for no threshold. A
    `Threshold` until `Layout.fitted` measures it.
    """
    radix: int = 2
    """2 to pack codes by their bits; 3 to pack as many base-3 digits as fit a byte."""
    has_zero: bool = False
    """True if zero is an element and zeros round to zero."""
    is_mirrored: bool = True
    """False if -x does not always round to the opposite of x, as in an asymmetric table."""
    follows: bool = True
    """False if elements classify values, like signs, rather than approximate them."""

    @property
    @abstractmethod
    def largest(self) -> float:
        """Largest magnitude."""

    @property
    def lowest(self) -> float:
        """Lowest number."""
        return -self.largest

    @property
    def highest(self) -> float:
        """Highest number."""
        return self.largest

    @abstractmethod
    def round(self, x: Tensor) -> Tensor:
        """Rounds each value to an element; infinities saturate, NaN stays NaN."""

    def step(self, x: Tensor) -> Tensor | None:
        """Returns the distance between the elements around each value, broadcastable to `x`.

        Returns None if elements are not evenly spaced around a value.
        """
        return None

    @abstractmethod
    def codes(self, y: Tensor) -> Tensor:
        """Returns the codes, 0 to 2^width - 1, of rounded values other than NaN."""

    @abstractmethod
    def values(self, codes: Tensor) -> Tensor:
        """Returns the values of codes."""

    def saturates(self, x: Tensor) -> Tensor:
        """Returns True beyond the largest magnitude; False for NaN."""
        return x.abs() > self.largest

    def stored(self, y: Tensor) -> Tensor:
        """Returns the codes of rounded values, including NaN."""
        is_nan = y.isnan()
        return self.codes(y.masked_fill(is_nan, 0.0)).masked_fill(is_nan, self.nan_code)

    @final
    @property
    def bits(self) -> float:
        """Storage of a code in bits."""
        return float(self.width) if self.radix == 2 else 8 / TRITS_PER_BYTE

    @final
    def fills_bytes(self, count: int) -> bool:
        """Returns True if `count` packed codes fill whole bytes."""
        return (self.width * count % 8 if self.radix == 2 else count % TRITS_PER_BYTE) == 0

    @final
    def pack(self, codes: Tensor) -> Tensor:
        """Packs codes in row-major order to one-dimensional uint8."""
        return pack_bits(codes, self.width) if self.radix == 2 else pack_trits(codes)

    @final
    def unpack(self, packed: Tensor, count: int) -> Tensor:
        """Unpacks codes to integers, (count,)."""
        if self.radix == 2:
            return unpack_bits(packed, self.width, count)
        return unpack_trits(packed, count)
