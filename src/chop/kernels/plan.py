"""Loop parameters of a layout: the constants that kernels need for its elements and scales."""

from __future__ import annotations

import bisect
import ctypes
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from chop.formats import NumberFormat
from chop.formats.elements import Denormal, Element, Fixed, Log2, Minifloat, Sign, Trit
from chop.formats.layout import Layout
from chop.formats.scaling import (
    FRACTION_BITS,
    ConstantScale,
    FloatScale,
    LearnedScale,
    ScaledFloatScale,
    Scaling,
    SharedExponent,
    Unscaled,
)
from chop.formats.statistic import MEAN as MEAN_MAGNITUDE

# The enumerations and the structure of cpu/plan.h, in its order.
INTEGER_FLOAT32, INTEGER_FLOAT64, FIXED, MINIFLOAT, LOG, SIGN, TERNARY, RESIDUAL = range(8)
NONE, SHARED_EXPONENT, SMALL_FLOAT, GIVEN, LARGEST, MEAN = range(6)
MAX_LEVELS = 8
DOUBLE_BITS = 52
UNIT_ROUNDOFF = 2.0**-53
EVERY_MAGNITUDE, EVERY_BIT = 0x7FFFFFFF, -1
"""Masks of the float32 bits that are compared. The second ignores negative numbers."""


class LoopParameters(ctypes.Structure):
    """Parameters of a format for the C++ loops. `cpu/plan.h` documents the fields."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("core", "scale")),
        *((name, ctypes.c_double) for name in ("steps", "step", "low", "high", "zero")),
        ("magic_factor", ctypes.c_double),
        *((name, ctypes.c_double) for name in ("increment_threshold", "zero_below")),
        ("floors", ctypes.c_int32),
        *((name, ctypes.c_int32) for name in ("offset", "lowest_exponent", "largest_exponent")),
        ("has_nan", ctypes.c_int32),
        ("carry", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("small_low", "small_high", "small_magic_factor")),
        *((name, ctypes.c_double) for name in ("small_divisor", "tensor_scale", "limit")),
        ("block", ctypes.c_int64),
        *(
            (name, ctypes.c_double)
            for name in ("roundoff", "lowest_unsaturated", "highest_unsaturated")
        ),
        *((name, ctypes.c_int32) for name in ("magnitude_mask", "levels")),
        ("factors", ctypes.c_double * MAX_LEVELS),
    )


@lru_cache(maxsize=4096)
def get_layout(number_format: NumberFormat) -> Layout | None:
    """Returns the cached `number_format.layout()`."""
    return number_format.layout()


@lru_cache(maxsize=4096)
def get_plan(
    number_format: NumberFormat, dtype: torch.dtype, scales_are_known: bool = False
) -> LoopParameters | None:
    """Returns the cached plan of a format, or None if unsupported. Callers must not modify it.

    Args:
        number_format: fitted format.
        dtype: dtype of the tensor.
        scales_are_known: True if the caller passes scales, which replace the layout's.
    """
    layout = get_layout(number_format)
    if layout is None or layout.has_zero_points:
        return None
    element = get_row(ELEMENTS, layout.element)
    if element is None:
        return None
    limit = torch.finfo(dtype).max if layout.overflow == "saturate" else math.inf
    common = {"block": 1, "magnitude_mask": EVERY_MAGNITUDE, "limit": limit}
    if layout.levels is not None:
        scale, element = _levels(layout), {**element, "core": RESIDUAL}
    elif scales_are_known:
        scale = {"scale": GIVEN}
    else:
        scale = SCALINGS.get(type(layout.scaling), _measured)(layout.scaling)
    if scale is None:
        return None
    # Without a scale, fixed point can use simpler loops, and thresholds are known.
    if scale["scale"] == NONE and element["core"] in ALONE:
        element = ALONE[element["core"]](layout.element, element, limit)
    return LoopParameters(**{**common, **scale, **element})


def with_unsaturated_range(plan: LoopParameters, layout: Layout) -> LoopParameters:
    """Returns the plan with its unsaturated range, unless the range depends on the tensor."""
    if plan.core in (TERNARY, RESIDUAL):
        return plan
    plan = LoopParameters.from_buffer_copy(plan)
    plan.lowest_unsaturated, plan.highest_unsaturated = _unsaturated_range(
        layout.element, layout.scaling is not None
    )
    return plan


@lru_cache(maxsize=4096)
def _unsaturated_range(element: Element, is_scaled: bool) -> tuple[float, float]:
    """Returns the smallest and largest number, divided by the scale if any, that do not saturate.

    The range contains zero, and every number outside it saturates.
    """
    dtypes = (torch.int64, torch.float64) if is_scaled else (torch.int32, torch.float32)

    def number(bits: int) -> Tensor:
        return torch.tensor([bits], dtype=dtypes[0], device="cpu").view(dtypes[1])

    def last_unsaturated(sign: int) -> float:
        infinity = torch.tensor(torch.inf, dtype=dtypes[1], device="cpu").view(dtypes[0]).item()
        # Bits of non-negative floats sort like the numbers, so bits can be bisected.
        magnitudes = range(int(infinity) + 1)
        beyond = bisect.bisect_left(
            magnitudes, True, key=lambda bits: bool(element.saturates(sign * number(bits).double()))
        )
        return sign * number(beyond - 1).item()

    return last_unsaturated(-1), last_unsaturated(1)


def get_row(table: Mapping[type, Callable[[Any], Any]], part: Any) -> Any:
    """Returns the row of a table for a layout's part, or None if its class has no row."""
    rule = table.get(type(part))
    return None if rule is None else rule(part)


Row = dict[str, Any]
"""Fields of a plan."""


def _fixed(element: Fixed) -> Row | None:
    floors, keeps_zero_sign = element.rounding == "floor", element.code == "sign_magnitude"
    if floors and keeps_zero_sign:
        return None
    return {
        "core": INTEGER_FLOAT64 if floors else FIXED,
        "steps": 2.0**element.frac_width,
        "step": 2.0**-element.frac_width,
        "low": element.lowest_code,
        "high": element.largest_code,
        # The loops add this number: +0 turns -0 into +0, and -0 changes nothing.
        "zero": -0.0 if keeps_zero_sign else 0.0,
        "floors": floors,
    }


def _fixed_alone(element: Fixed, row: Row, limit: float) -> Row:
    """Selects float32 loops if every step is exact in float32 and rounding is not by floor."""
    if element.code == "sign_magnitude" or element.largest > limit:
        return row
    # Codes of up to 24 bits are integers that float32 represents exactly.
    in_float32 = element.width <= FRACTION_BITS + 1 and not (row["floors"] and row["step"] > 1)
    return {**row, "core": INTEGER_FLOAT32 if in_float32 else INTEGER_FLOAT64}


def _minifloat(element: Minifloat) -> Row:
    return {
        "core": MINIFLOAT,
        "low": 2.0**element.lowest_exponent,
        "high": element.largest,
        # Adding and subtracting this factor times the power of two of x in float64 leaves the
        # mantissa bits, rounded to nearest even.
        "magic_factor": 2.0 ** (DOUBLE_BITS - element.mantissa_width),
    }


def _denormal(element: Denormal) -> Row:
    # In [2^(E-1), 2^E) the top bit of k is set: it does what a hidden bit would.
    return {
        "core": MINIFLOAT,
        "low": 2.0 ** (-element.bias - 1),
        "high": element.largest,
        "magic_factor": 2.0 ** (DOUBLE_BITS - element.mantissa_width + 1),
    }


def _log(element: Log2) -> Row:
    low = 2.0**element.lowest_exponent
    in_log_domain = element.nearest == "log"
    # Halfway between 0 and the lowest power, or in the log domain between it and its half.
    zero_below = low / 2 * (math.sqrt(2) if in_log_domain else 1.0)
    return {
        "core": LOG,
        "low": low,
        "high": element.largest,
        "increment_threshold": math.sqrt(2) if in_log_domain else 1.5,
        "zero_below": zero_below if element.zero_code else 0.0,
    }


def _sign(element: Sign) -> Row | None:
    if element.stochastic:
        return None
    return {"core": SIGN, "low": element.lowest}


def _trit(element: Trit) -> Row:
    """Returns the fields without the threshold, which may depend on the tensor."""
    return {"core": TERNARY}


def _trit_alone(element: Trit, row: Row, limit: float) -> Row:
    return {**row, "scale": GIVEN}


ELEMENTS: dict[type[Element], Callable[[Any], Row | None]] = {
    Fixed: _fixed,
    Minifloat: _minifloat,
    Denormal: _denormal,
    Log2: _log,
    Sign: _sign,
    Trit: _trit,
}
ALONE: dict[int, Callable[[Any, Row, float], Row]] = {
    FIXED: _fixed_alone,
    INTEGER_FLOAT64: _fixed_alone,
    TERNARY: _trit_alone,
}
"""Changes for formats without a scale, by core."""


def _levels(layout: Layout) -> Row | None:
    """Returns the fields without factors, which may depend on the tensor; None if unsupported."""
    known = layout.scaling.given if isinstance(layout.scaling, ConstantScale) else ()
    are_floats = all(abs(scale) <= torch.finfo(torch.float32).max for scale in known)
    is_known = layout.scaling == FloatScale(MEAN_MAGNITUDE) or isinstance(
        layout.scaling, ConstantScale | LearnedScale
    )
    fits = type(layout.element) is Sign and layout.levels <= MAX_LEVELS  # type: ignore[operator]
    return {"scale": NONE} if fits and is_known and are_floats else None


def _unscaled(scaling: Scaling | None) -> Row:
    return {"scale": NONE}


def _measured(scaling: Scaling) -> Row:
    """Returns the fields for scales that are measured before the loops run."""
    return {"scale": GIVEN}


def _float_scale(scaling: FloatScale) -> Row:
    statistic = scaling.statistic
    mask = EVERY_MAGNITUDE if statistic.is_signed else EVERY_BIT
    row = {"scale": GIVEN, "magnitude_mask": mask, "small_divisor": scaling.divisor}
    if scaling == FloatScale(MEAN_MAGNITUDE):
        return {**row, "scale": MEAN}
    covers_all = statistic.kind == "largest" and statistic.quantile == 1
    return {**row, "scale": LARGEST} if covers_all and scaling.is_positive else row


def _shared_exponent(scaling: SharedExponent) -> Row:
    return {
        "scale": SHARED_EXPONENT,
        "offset": scaling.offset,
        # From this fraction on, the largest magnitude takes the next exponent.
        "carry": first_fraction(scaling.increment_threshold) << DOUBLE_BITS - FRACTION_BITS,
        "lowest_exponent": scaling.lowest,
        "largest_exponent": scaling.largest,
        "has_nan": scaling.has_nan,
    }


def first_fraction(value: float) -> int:
    """Returns the fraction, in 2^-23, of the first float32 at or above a value in [1, 2]."""
    fraction: float = (value - 1) * 2**FRACTION_BITS
    return math.ceil(fraction)


def _small_float(scaling: ScaledFloatScale) -> Row:
    if type(scaling.element) is not Minifloat:
        return {"scale": GIVEN}
    small = _minifloat(scaling.element)
    return {
        "scale": SMALL_FLOAT,
        **{f"small_{name}": small[name] for name in ("low", "high", "magic_factor")},
        "small_divisor": scaling.largest,
    }


SCALINGS: dict[type[Scaling] | type[None], Callable[[Any], Row | None]] = {
    type(None): _unscaled,
    Unscaled: _unscaled,
    FloatScale: _float_scale,
    SharedExponent: _shared_exponent,
    ScaledFloatScale: _small_float,
}
"""Scales that the loops compute or do not need; all others are measured beforehand."""
