"""`minifloat_denorm`: small floats without a hidden bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chop.formats.elements import Denormal
from chop.formats.float_format import FloatFormat


@dataclass(frozen=True)
class MinifloatDenorm(FloatFormat):
    """Floating point without a hidden bit: the mantissa is a plain fraction.

    Values: s 2^E k/2^m, with the sign s, -bias <= E <= 2^exponent_width - 1 - bias and 0 <= k <
    2^m. m is `width - exponent_width - 1`.
    Rounding: to nearest, ties to even. A value just below 2^E can therefore become 2^E.
    Saturation: larger values, including infinities, become the largest value.
    Special values: -0 is preserved. NaN stays NaN in `round` and is encoded as 0.

    Example:
        >>> import torch
        >>> MinifloatDenorm(8, 4, 7).round(torch.tensor([1.0, 0.999, 1000.0]))
        tensor([  1.,   1., 224.])

    Source: the unnormalized floating point of Knuth, The Art of Computer Programming, 4.2.2.
    """

    name: ClassVar[str] = "minifloat_denorm"

    @property
    def element(self) -> Denormal:
        """Minifloats without a hidden bit."""
        return Denormal(*self._parts)
