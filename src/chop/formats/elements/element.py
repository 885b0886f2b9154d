"""What an element core is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class Element(ABC):
    """A finite set of numbers, each with a code of `width` bits.

    All tensors are float64 (values) or int64 (codes), of any shape: formats convert.
    """

    width: int
    nan_code: int = 0
    """The code that NaN is stored with; only some elements have one that means NaN."""

    @property
    @abstractmethod
    def largest(self) -> float:
        """The largest magnitude."""

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
