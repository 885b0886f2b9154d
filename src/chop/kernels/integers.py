"""Layouts that are integers of at most 8 bits with a scale, for integer products and ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from chop.formats.elements import Element, Fixed
from chop.formats.layout import Layout
from chop.formats.scaling import ConstantScale, FloatScale, Unscaled
from chop.formats.statistic import Statistic
from chop.kernels.plan import get_row

WIDEST = 8


class Integers(NamedTuple):
    """Elements k `step` with integers `low` <= k <= `high`, rounded to nearest, ties to even.

    Codes have at most 8 bits, in two's complement if `low` is negative.
    """

    low: int
    high: int
    step: float


def get_integers(layout: Layout | None) -> Integers | None:
    """Returns the integers of a layout's elements, or None if they are not integers."""
    if layout is None or layout.levels is not None or layout.has_zero_points:
        return None
    row: Integers | None = get_row(ELEMENTS, layout.element)
    return row


def _fixed(element: Fixed) -> Integers | None:
    if element.width > WIDEST or element.rounding != "nearest_even":
        return None
    if element.code == "sign_magnitude":
        return None
    return Integers(element.lowest_code, element.largest_code, 2.0**-element.frac_width)


ELEMENTS: dict[type[Element], Callable[[Any], Integers | None]] = {Fixed: _fixed}
"""Conversions by element class."""


def one_scale(layout: Layout, integers: Integers) -> float | None:
    """Returns the static scale of the integers; 0 for a dynamic absmax scale, None for others.

    A dynamic scale is the group's largest magnitude over the largest integer.
    """
    scaling = layout.scaling
    if scaling is None or isinstance(scaling, Unscaled):
        return integers.step
    if isinstance(scaling, ConstantScale):
        (scale, *others) = scaling.given
        return scale * integers.step if scale > 0 and not others else None
    statistic = Statistic("largest", is_signed=integers.low < 0)
    follows = scaling == FloatScale(statistic, integers.high, is_positive=True)
    return 0.0 if follows and integers.step == 1 else None
