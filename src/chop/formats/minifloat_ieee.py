"""`minifloat_ieee`: small IEEE 754 floats, OCP's 8-, 6- and 4-bit ones among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from chop.formats.base import check_range, clamped
from chop.formats.elements import Minifloat, Variant, default_variant
from chop.formats.scaled import ElementFormat

MIN_WIDTH = 3
MAX_EXPONENT_WIDTH = 8
BIASES = range(-256, 257)


def largest_exponent_width(width: int) -> int:
    """The widest exponent that leaves a bit of fraction, and is not wider than float32's."""
    return min(width - 2, MAX_EXPONENT_WIDTH)


def check_float_widths(name: str, width: int, exponent_width: int) -> None:
    """Raises ConfigError unless sign, exponent and at least one bit of fraction fit."""
    check_range(f"{name}.width", width, range(MIN_WIDTH, 33))
    allowed = range(1, largest_exponent_width(width) + 1)
    check_range(f"{name}.exponent_width", exponent_width, allowed)


def nearest_float_widths(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with an exponent that fits into the width, where that can hold one."""
    width = fields.get("width")
    if not isinstance(width, int) or width < MIN_WIDTH:
        return dict(fields)
    return clamped(fields, "exponent_width", largest_exponent_width(width))


@dataclass(frozen=True)
class MinifloatIEEE(ElementFormat):
    """Floating point with a hidden bit, subnormal numbers, and a width of choice.

    Values: s 2^E (1 + f/2^m), E from 1 - bias on; s 2^(1-bias) f/2^m below. m is
    `width - exponent_width - 1`.
    Rounding: to nearest, ties to even, with carry into the next binade. Saturation: beyond the
    largest finite number, infinities too. Special values: -0 is kept; NaN stays NaN, and is 0
    when stored in the variant without a NaN.

    Attributes:
        width: bits per element, 3 to 32.
        exponent_width: bits of the exponent, 1 to 8, leaving a fraction of at least one bit.
        exponent_bias: None for 2^(exponent_width-1) - 1.
        variant: what the largest codes mean: `ieee` infinity and NaN (e5m2: at most 57344), `fn`
            one NaN (e4m3: 448), `finite` numbers (e2m1: 6). None takes OCP's choice: `finite`
            below 8 bits, else `fn` for exponents below 5 bits and `ieee` for wider ones.

    Example:
        >>> import torch
        >>> MinifloatIEEE(8, 4).round(torch.tensor([1.97, 500.0]))
        tensor([  2., 448.])

    Source: IEEE 754-2019, section 3; OCP 8-bit Floating Point Specification 1.0.
    """

    name: ClassVar[str] = "minifloat_ieee"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "width": (4, 6, 8, 16),
        "exponent_width": (2, 3, 4, 5),
    }

    width: int
    exponent_width: int
    exponent_bias: int | None = None
    variant: Variant | None = None

    @classmethod
    def nearest_valid(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The widest exponent that fits for wider ones."""
        return nearest_float_widths(fields)

    def validate(self) -> None:
        """Raises ConfigError where a width or the bias is out of range."""
        check_float_widths(self.name, self.width, self.exponent_width)
        check_range(f"{self.name}.exponent_bias", self.exponent_bias, BIASES, "")

    @property
    def element(self) -> Minifloat:
        """Minifloats."""
        bias = self.exponent_bias
        return Minifloat(
            self.exponent_width,
            self.width - self.exponent_width - 1,
            2 ** (self.exponent_width - 1) - 1 if bias is None else bias,
            self.variant or default_variant(self.width, self.exponent_width),
        )
