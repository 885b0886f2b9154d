"""Base class of floating-point formats with a chosen exponent and mantissa."""

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
    """Returns the widest exponent up to float32's that leaves one fraction bit."""
    return min(width - 2, MAX_EXPONENT_WIDTH)


def check_float_widths(name: str, width: int, exponent_width: int) -> None:
    """Raises ConfigError unless sign, exponent and at least one fraction bit fit the width."""
    Range(MIN_WIDTH, 32, "bits").check(width, f"{name}.width")
    allowed = Range(1, _largest_exponent_width(width), "bits")
    allowed.check(exponent_width, f"{name}.exponent_width")


def nearest_float_widths(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Limits the exponent to the width, if the width has room for an exponent."""
    width = fields.get("width")
    if not isinstance(width, int) or width < MIN_WIDTH:
        return dict(fields)
    return clamped(fields, "exponent_width", _largest_exponent_width(width))


@dataclass(frozen=True)
class FloatFormat(ElementFormat):
    """Floating-point format with sign, exponent and mantissa of chosen widths.

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
        """Limits the exponent to the widest that fits."""
        return nearest_float_widths(fields)

    def validate(self) -> None:
        """Raises ConfigError if the width leaves too little room for the exponent."""
        check_float_widths(self.name, self.width, self.exponent_width)

    @property
    def _parts(self) -> tuple[int, int, int]:
        """Exponent bits, mantissa bits and bias."""
        width, bias = self.exponent_width, self.exponent_bias
        return width, self.width - width - 1, 2 ** (width - 1) - 1 if bias is None else bias
