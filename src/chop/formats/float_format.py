"""Floating-point formats: base of those with an exponent and a mantissa of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from chop.config import Range
from chop.formats.base import clamped
from chop.formats.scaled import ElementFormat

MIN_WIDTH = 3
MAX_EXPONENT_WIDTH = 8


def _largest_exponent_width(width: int) -> int:
    """The widest exponent that leaves a bit of fraction, and is not wider than float32's."""
    return min(width - 2, MAX_EXPONENT_WIDTH)


def check_float_widths(name: str, width: int, exponent_width: int) -> None:
    """Raises ConfigError unless sign, exponent and at least one bit of fraction fit."""
    Range(MIN_WIDTH, 32, "bits").check(width, f"{name}.width")
    allowed = Range(1, _largest_exponent_width(width), "bits")
    allowed.check(exponent_width, f"{name}.exponent_width")


def nearest_float_widths(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with an exponent that fits into the width, where that can hold one."""
    width = fields.get("width")
    if not isinstance(width, int) or width < MIN_WIDTH:
        return dict(fields)
    return clamped(fields, "exponent_width", _largest_exponent_width(width))


@dataclass(frozen=True)
class FloatFormat(ElementFormat):
    """Sign, exponent and mantissa in a width of choice.

    Attributes:
        width: bits per element, 3 to 32.
        exponent_width: bits of the exponent, 1 to 8, leaving a mantissa of at least one bit.
        exponent_bias: None for 2^(exponent_width-1) - 1.
    """

    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "width": (4, 6, 8, 16),
        "exponent_width": (2, 3, 4, 5),
    }

    width: int
    exponent_width: int
    exponent_bias: Annotated[int | None, Range(-256, 256)] = None

    @classmethod
    def nearest_valid(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The widest exponent that fits for wider ones."""
        return nearest_float_widths(fields)

    def validate(self) -> None:
        """Raises ConfigError where the width leaves the exponent too little room."""
        check_float_widths(self.name, self.width, self.exponent_width)

    @property
    def _parts(self) -> tuple[int, int, int]:
        """Bits of the exponent, bits of the mantissa, and the bias."""
        width, bias = self.exponent_width, self.exponent_bias
        return width, self.width - width - 1, 2 ** (width - 1) - 1 if bias is None else bias
