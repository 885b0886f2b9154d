"""A number format in the numbers that kernels work with."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from chop.formats import Binary, Integer, NumberFormat, ScaleInteger, Ternary
from chop.formats.elements import Denormal, Element, Fixed, Log2, Minifloat, Sign
from chop.formats.scaled import BlockFormat, ElementFormat, ScaledFormat
from chop.formats.scaling import GivenScale, ScaledFloatScale, SharedExponent, Unscaled

# The enumerations and the structure of fake_quantize.cpp, in its order.
INTEGER_FLOAT32, INTEGER_FLOAT64, FIXED, MINIFLOAT, LOG, SIGN, TERNARY = range(7)
NONE, SHARED_EXPONENT, SMALL_FLOAT, GIVEN = range(4)
FRACTION_BITS = 23  # of float32; the widest dtype that the kernels take
DOUBLE_BITS = 52


class Plan(ctypes.Structure):
    """What the loops need to know of a format: see the source for the fields."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("core", "scale")),
        *((name, ctypes.c_double) for name in ("steps", "step", "low", "high", "zero")),
        *((name, ctypes.c_double) for name in ("turn", "zero_below")),
        ("floors", ctypes.c_int32),
        *((name, ctypes.c_int32) for name in ("offset", "lowest_exponent", "largest_exponent")),
        ("has_nan", ctypes.c_int32),
        ("carry", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("small_low", "small_high", "small_turn")),
        *((name, ctypes.c_double) for name in ("small_divisor", "of_tensor", "limit")),
        ("block", ctypes.c_int64),
    )


@lru_cache(maxsize=4096)
def plan_of(number_format: NumberFormat, dtype: torch.dtype) -> Plan | None:
    """The plan, or None for what the loops do not know. Callers must not change it."""
    if isinstance(number_format, Integer):
        return _integer(number_format)
    if isinstance(number_format, Ternary):
        return _ternary(number_format, dtype)
    if not isinstance(number_format, ElementFormat | ScaledFormat):
        return None
    element = _ELEMENTS.get(type(number_format.element), _unknown)(number_format.element)
    scale = _scale(number_format)
    if element is None or scale is None:
        return None
    return Plan(**{"block": 1, **element, **scale, "limit": torch.finfo(dtype).max})


def _integer(number_format: Integer) -> Plan:
    width, frac_width = number_format.width, number_format.frac_width
    assert isinstance(width, int) and isinstance(frac_width, int)
    low, high = number_format.code_range
    return Plan(
        core=INTEGER_FLOAT32 if width <= FRACTION_BITS + 1 else INTEGER_FLOAT64,
        scale=NONE,
        steps=2.0**frac_width,
        step=2.0**-frac_width,
        low=low,
        high=high,
        floors=number_format.floor,
        block=1,
    )


def _ternary(number_format: Ternary, dtype: torch.dtype) -> Plan | None:
    """Without the threshold, which follows the tensor."""
    if number_format.median is True:
        return None
    return Plan(core=TERNARY, scale=GIVEN, limit=torch.finfo(dtype).max, block=1)


def measures_mean(number_format: Ternary) -> bool:
    """True where the threshold follows the mean magnitude of the tensor."""
    named = (number_format.threshold, number_format.median, number_format.max, number_format.mean)
    return all(value is None or value is False for value in named[:3]) and (
        named[3] is None or isinstance(named[3], bool)
    )


def _fixed(element: Fixed) -> dict[str, Any]:
    return {
        "core": FIXED,
        "steps": 2.0**element.frac_width,
        "step": 2.0**-element.frac_width,
        "low": 0 if element.code == "unsigned" else -element.largest_code,
        "high": element.largest_code,
        "zero": -0.0 if element.code == "sign_magnitude" else 0.0,
    }


def _minifloat(element: Minifloat) -> dict[str, Any]:
    return {
        "core": MINIFLOAT,
        "low": 2.0**element.lowest_exponent,
        "high": element.largest,
        "turn": 2.0 ** (DOUBLE_BITS - element.mantissa_width),
    }


def _denormal(element: Denormal) -> dict[str, Any]:
    # In [2^(E-1), 2^E) the top bit of k is set: it does what a hidden bit would.
    return {
        "core": MINIFLOAT,
        "low": 2.0 ** (-element.bias - 1),
        "high": element.largest,
        "turn": 2.0 ** (DOUBLE_BITS - element.mantissa_width + 1),
    }


def _log(element: Log2) -> dict[str, Any]:
    low = 2.0**element.lowest_exponent
    in_log_domain = element.nearest == "log"
    zero_below = low / 2 * (math.sqrt(2) if in_log_domain else 1.0)
    return {
        "core": LOG,
        "low": low,
        "high": element.largest,
        "turn": math.sqrt(2) if in_log_domain else 1.5,
        "zero_below": zero_below if element.zero_code else 0.0,
    }


def _sign(element: Sign) -> dict[str, Any] | None:
    if element.stochastic:
        return None
    return {"core": SIGN, "low": -1.0 if element.bipolar else 0.0}


def _unknown(element: Element) -> None:
    return None


_ELEMENTS: dict[type[Element], Callable[[Any], dict[str, Any] | None]] = {
    Fixed: _fixed,
    Minifloat: _minifloat,
    Denormal: _denormal,
    Log2: _log,
    Sign: _sign,
}


def _scale(number_format: ElementFormat | ScaledFormat) -> dict[str, Any] | None:
    if isinstance(number_format, ElementFormat):
        return {"scale": NONE}
    scaling = number_format.scaling
    if isinstance(scaling, Unscaled):
        return {"scale": NONE}
    is_known = isinstance(number_format, Binary) or _follows_largest(number_format)
    if is_known or isinstance(scaling, GivenScale):
        return {"scale": GIVEN}
    if isinstance(number_format, BlockFormat):
        block = {"block": int(number_format.groups.nominal_size)}
        if isinstance(scaling, SharedExponent):
            return {**block, **_shared_exponent(scaling)}
        if isinstance(scaling, ScaledFloatScale) and isinstance(scaling.element, Minifloat):
            return {**block, **_small_float(scaling, scaling.element)}
    return None


def _follows_largest(number_format: ScaledFormat) -> bool:
    """True where a float scale depends on a group's largest finite magnitude alone."""
    return (
        isinstance(number_format, ScaleInteger)
        and number_format.is_signed
        and number_format.quantile == 1
    )


def _shared_exponent(scaling: SharedExponent) -> dict[str, Any]:
    offset, turn = scaling.turn()
    return {
        "scale": SHARED_EXPONENT,
        "offset": offset,
        "carry": turn << DOUBLE_BITS - FRACTION_BITS,
        "lowest_exponent": scaling.lowest,
        "largest_exponent": scaling.largest,
        "has_nan": scaling.has_nan,
    }


def _small_float(scaling: ScaledFloatScale, element: Minifloat) -> dict[str, Any]:
    small = _minifloat(element)
    return {
        "scale": SMALL_FLOAT,
        **{f"small_{name}": small[name] for name in ("low", "high", "turn")},
        "small_divisor": scaling.largest,
    }
