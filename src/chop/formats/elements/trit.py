"""One ternary digit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from chop.formats.elements.element import Element, Rounding
from chop.formats.packing import TRITS_PER_BYTE, pack_trits, unpack_trits
from chop.formats.statistic import Threshold


@dataclass(frozen=True)
class Trit(Element):
    """{-1, 0, 1}: zero up to a threshold, else the sign. There is only +0.

    A scale follows the values beyond the threshold.

    Attributes:
        threshold: of magnitudes, before any scale; waits for `fitted` where it follows a tensor.
    """

    threshold: Threshold | float
    width: int = 2
    nan_code: int = 1  # of zero
    rounding: Rounding = "threshold"
    is_absolute: bool = True
    follows: bool = False

    @property
    def largest(self) -> float:
        """1."""
        return 1.0

    def fitted(self, x: Tensor) -> Trit:
        """With the threshold of this tensor as a number."""
        known = isinstance(self.threshold, float)
        return self if known else replace(self, threshold=self.threshold.of(x))  # type: ignore[union-attr]

    def _is_kept(self, x: Tensor) -> Tensor:
        assert isinstance(self.threshold, float)
        return x.abs() > self.threshold

    def round(self, x: Tensor) -> Tensor:
        """The digit of each value."""
        return torch.where(self._is_kept(x), x.sign(), 0.0).masked_fill(x.isnan(), torch.nan)

    def measured(self, groups: Tensor) -> Tensor:
        """The values whose digit is not zero."""
        return groups.masked_fill(~self._is_kept(groups), torch.nan)

    def scaled(self, y: Tensor, scale: Tensor) -> Tensor:
        """Digits times scales; adding zero turns the -0 of a scale that is zero into +0."""
        return y * scale + 0.0

    def codes(self, y: Tensor) -> Tensor:
        """1 above the digit."""
        return y.long() + 1

    def values(self, codes: Tensor) -> Tensor:
        """The digits."""
        return codes.double() - 1

    @property
    def bits(self) -> float:
        """1.6: five digits share a byte."""
        return 8 / TRITS_PER_BYTE

    def fills_bytes(self, count: int) -> bool:
        """True for multiples of five."""
        return count % TRITS_PER_BYTE == 0

    def pack(self, codes: Tensor) -> Tensor:
        """In base 3, five digits to a byte."""
        return pack_trits(codes)

    def unpack(self, packed: Tensor, count: int) -> Tensor:
        """The digits, each 1 above its value."""
        return unpack_trits(packed, count)
