"""`minifloat_ieee`: small IEEE 754 floats, including OCP's 8-, 6- and 4-bit formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chop.formats.elements import Minifloat, Variant, default_variant
from chop.formats.float_format import FloatFormat


@dataclass(frozen=True)
class MinifloatIEEE(FloatFormat):
    """Floating point of any width, with a hidden bit and subnormal numbers.

    Values: normal numbers s 2^E (1 + f/2^m) with E >= 1 - bias, and subnormal numbers s 2^(1-bias)
    f/2^m. s is the sign and m is `width - exponent_width - 1`.
    Rounding: to nearest, ties to even, with a carry into the next binade.
    Saturation: larger values, including infinities, become the largest finite number.
    Special values: -0 is preserved. NaN stays NaN in `round`. The variant without a NaN encodes it
    as 0.

    Attributes:
        variant: meaning of the largest codes: `ieee` infinity and NaN (e5m2: at most 57344), `fn`
            one NaN (e4m3: 448), `finite` numbers (e2m1: 6). None takes OCP's choice: `finite`
            below 8 bits, otherwise `fn` for exponents below 5 bits and `ieee` for wider ones.

    Example:
        >>> import torch
        >>> MinifloatIEEE(8, 4).round(torch.tensor([1.97, 500.0]))
        tensor([  2., 448.])

    Source: IEEE 754-2019, section 3; OCP 8-bit Floating Point Specification 1.0.
    """

    name: ClassVar[str] = "minifloat_ieee"

    variant: Variant | None = None

    @property
    def element(self) -> Minifloat:
        """Minifloats."""
        variant = self.variant or default_variant(self.width, self.exponent_width)
        return Minifloat(*self._parts, variant)
