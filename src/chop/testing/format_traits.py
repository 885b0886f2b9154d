"""Traits of number formats, derived from the layout, as conditions of laws."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from chop.formats import NumberFormat
from chop.formats.elements import Sign, Trit
from chop.formats.groups import Whole
from chop.formats.scaling import ScaledFloatScale, Unscaled


def get_layout(fmt: NumberFormat) -> Any:
    """Returns the layout, or None for a format with custom rounding."""
    return fmt.layout()


def get_element(fmt: NumberFormat) -> Any:
    """Returns the element of the layout, or None for a format with custom rounding."""
    layout = get_layout(fmt)
    return None if layout is None else layout.element


def get_scaling(fmt: NumberFormat) -> Any:
    """Returns the scaling of the layout, or None without scales."""
    layout = get_layout(fmt)
    scaling = None if layout is None else layout.scaling
    return None if isinstance(scaling, Unscaled) else scaling


def _is_measured(fmt: NumberFormat) -> bool:
    """Returns whether scales depend on the data."""
    return get_scaling(fmt) is not None and get_scaling(fmt).statistic is not None


def _has_levels(fmt: NumberFormat) -> bool:
    """Returns whether values are sums of several roundings."""
    return get_layout(fmt) is not None and get_layout(fmt).levels is not None


def floors(fmt: NumberFormat) -> bool:
    """Returns whether rounding is toward minus infinity."""
    return getattr(get_element(fmt), "rounding", None) == "floor"


def _is_unsigned(fmt: NumberFormat) -> bool:
    """Returns whether codes have no sign."""
    return getattr(get_element(fmt), "code", None) == "unsigned"


def get_groups(fmt: NumberFormat, x: Tensor) -> Tensor:
    """Returns the groups of `x` that are rounded together, (..., size)."""
    return x.reshape(1, -1) if get_scaling(fmt) is None else get_layout(fmt).groups.split(x)


def is_deterministic(fmt: NumberFormat) -> bool:
    """Returns whether rounding is deterministic."""
    return fmt.is_deterministic


def _is_zero_one(fmt: NumberFormat) -> bool:
    """Returns whether the values are binary numbers 0 and 1."""
    return isinstance(get_element(fmt), Sign) and not get_element(fmt).bipolar


def has_its_own_values_as_fixed_points(fmt: NumberFormat) -> bool:
    """Returns whether representable values round to themselves.

    Exceptions: {0, 1} rounds 0 to 1, and scales that are means or rounded quotients move. So do
    those of a table whose numbers of one sign end below the largest magnitude.
    """
    scaling = get_scaling(fmt)
    measures_levels = _is_measured(fmt) and _has_levels(fmt) and get_layout(fmt).levels > 1
    cuts = _is_measured(fmt) and (scaling.statistic.quantile < 1 or floors(fmt))
    moves = measures_levels or cuts or fmt.is_nested or isinstance(scaling, ScaledFloatScale)
    moves = moves or (_is_measured(fmt) and _has_a_short_side(fmt))
    return is_deterministic(fmt) and not (_is_zero_one(fmt) or moves)


def _has_a_short_side(fmt: NumberFormat) -> bool:
    """Returns whether the numbers of a table reach the scale with one sign only."""
    element, divisor = get_element(fmt), getattr(get_scaling(fmt), "divisor", 0)
    return not element.is_mirrored and min(-element.lowest, element.highest) < divisor


def is_monotone(fmt: NumberFormat) -> bool:
    """Returns whether rounding is monotone.

    Exception: a residual's factor may exceed that of the previous level.
    """
    if get_layout(fmt) is None and fmt.is_nested:
        return False
    return is_deterministic(fmt) and not (_has_levels(fmt) and _is_measured(fmt))


def has_mirror(fmt: NumberFormat) -> bool:
    """Returns whether rounding is symmetric in sign.

    Exceptions: floors, unsigned numbers, tables, and {0, 1}. Signs round a residual of zero to +1.
    """
    is_lopsided = get_layout(fmt) is None and fmt.is_nested
    if is_lopsided or not getattr(get_element(fmt), "is_mirrored", True):
        return False
    return not (floors(fmt) or _is_unsigned(fmt) or _is_zero_one(fmt) or _has_levels(fmt))


def rounds_to_nearest(fmt: NumberFormat) -> bool:
    """Returns whether rounding is to the nearest value.

    Exceptions: floors, thresholds, {0, 1}, and sums of signs determined one after the other.
    """
    by_rule = isinstance(get_element(fmt), Trit) and (
        get_element(fmt).threshold != 0.5 or get_scaling(fmt) is not None
    )
    greedy = _has_levels(fmt) and _is_measured(fmt)
    exact = is_deterministic(fmt) and not (floors(fmt) or _is_zero_one(fmt))
    return exact and fmt.bits() < 9 and not (by_rule or greedy)


def has_blocks_along_one_axis(fmt: NumberFormat) -> bool:
    """Returns whether blocks lie along a single axis, selected by a field."""
    return hasattr(fmt, "block_dim") and len(get_layout(fmt).groups.sizes) == 1


def rounds_parts_alike(fmt: NumberFormat) -> bool:
    """Returns whether each index of the first axis is rounded independently."""
    layout = get_layout(fmt)
    if layout is None or get_scaling(fmt) is None:
        threshold = getattr(get_element(fmt), "threshold", 0.0)
        return isinstance(threshold, float) and not _has_levels(fmt)
    by_row = layout.groups.is_row_separable(3) and layout.groups != Whole("channel")
    return by_row and not (layout.scaling.spans_tensor or _has_levels(fmt))
