"""`minifloat_denorm`: small floats without a hidden bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from chop.formats.base import check_range
from chop.formats.elements import Denormal
from chop.formats.minifloat_ieee import BIASES, check_float_widths, nearest_float_widths
from chop.formats.scaled import ElementFormat


@dataclass(frozen=True)
class MinifloatDenorm(ElementFormat):
    """Floating point whose mantissa is a plain fraction.

    Values: s 2^E k/2^m, -bias <= E <= 2^exponent_width - 1 - bias, 0 <= k < 2^m. m is
    `width - exponent_width - 1`.
    Rounding: to nearest, ties to even; just under 2^E the nearest is 2^E. Saturation: beyond the
    largest value, infinities too. Special values: -0 is kept; NaN stays NaN, and is 0 when
    stored.

    Attributes:
        width: bits per element, 3 to 32.
        exponent_width: bits of the exponent, 1 to 8, leaving a mantissa of at least one bit.
        exponent_bias: None for 2^(exponent_width-1) - 1.

    Example:
        >>> import torch
        >>> MinifloatDenorm(8, 4, 7).round(torch.tensor([1.0, 0.999, 1000.0]))
        tensor([  1.,   1., 224.])

    Source: the unnormalised floating point of Knuth, The Art of Computer Programming, 4.2.2.
    """

    name: ClassVar[str] = "minifloat_denorm"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "width": (4, 6, 8, 16),
        "exponent_width": (2, 3, 4, 5),
    }

    width: int
    exponent_width: int
    exponent_bias: int | None = None

    @classmethod
    def nearest_valid(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The widest exponent that fits for wider ones."""
        return nearest_float_widths(fields)

    def validate(self) -> None:
        """Raises ConfigError where a width or the bias is out of range."""
        check_float_widths(self.name, self.width, self.exponent_width)
        check_range(f"{self.name}.exponent_bias", self.exponent_bias, BIASES, "")

    @property
    def element(self) -> Denormal:
        """Minifloats without a hidden bit."""
        bias = self.exponent_bias
        return Denormal(
            self.exponent_width,
            self.width - self.exponent_width - 1,
            2 ** (self.exponent_width - 1) - 1 if bias is None else bias,
        )
