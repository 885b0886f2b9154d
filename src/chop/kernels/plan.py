"""A number format in the numbers that kernels work with."""

from __future__ import annotations

import bisect
import ctypes
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from chop.formats import (
    Binary,
    BinaryResidual,
    Integer,
    NumberFormat,
    ScaleInteger,
    Ternary,
)
from chop.formats.binary_residual import MAX_LEVELS
from chop.formats.elements import Denormal, Element, Fixed, Log2, Minifloat, Sign
from chop.formats.scaled import BlockFormat, ElementFormat, ScaledFormat
from chop.formats.scaling import GivenScale, ScaledFloatScale, SharedExponent, Unscaled

# The enumerations and the structure of cpu/plan.h, in its order.
INTEGER_FLOAT32, INTEGER_FLOAT64, FIXED, MINIFLOAT, LOG, SIGN, TERNARY, RESIDUAL = range(8)
NONE, SHARED_EXPONENT, SMALL_FLOAT, GIVEN, LARGEST, MEAN = range(6)
FRACTION_BITS = 23  # of float32; the widest dtype that the kernels take
DOUBLE_BITS = 52
EVERY_MAGNITUDE, EVERY_BIT = 0x7FFFFFFF, -1
"""Which bits of a float32 are compared: all of them where negative numbers do not count."""


class Plan(ctypes.Structure):
    """What the loops need to know of a format: see cpu/plan.h for the fields."""

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
        *((name, ctypes.c_double) for name in ("roundoff", "kept_low", "kept_high")),
        *((name, ctypes.c_int32) for name in ("magnitude_mask", "levels")),
        ("factors", ctypes.c_double * MAX_LEVELS),
    )


@lru_cache(maxsize=4096)
def plan_of(number_format: NumberFormat, dtype: torch.dtype) -> Plan | None:
    """The plan, or None for what the loops do not know. Callers must not change it."""
    if isinstance(number_format, Integer):
        return _integer(number_format)
    if isinstance(number_format, Ternary):
        return _ternary(number_format, dtype)
    if isinstance(number_format, BinaryResidual):
        return _residual(number_format, dtype)
    if not isinstance(number_format, ElementFormat | ScaledFormat):
        return None
    element = _ELEMENTS.get(type(number_format.element), _unknown)(number_format.element)
    scale = _scale(number_format)
    if element is None or scale is None:
        return None
    common = {"block": 1, "magnitude_mask": EVERY_MAGNITUDE, "limit": torch.finfo(dtype).max}
    return Plan(**{**common, **element, **scale})


def with_kept_range(plan: Plan, number_format: NumberFormat) -> Plan:
    """The plan with the range that does not saturate, where it does not follow the tensor."""
    if plan.core in (TERNARY, RESIDUAL):
        return plan
    plan = Plan.from_buffer_copy(plan)
    plan.kept_low, plan.kept_high = _kept_range(number_format)
    return plan


@lru_cache(maxsize=4096)
def _kept_range(number_format: NumberFormat) -> tuple[float, float]:
    """The least and the largest number that does not saturate: of elements, if there are scales.

    Zero is between them, and whatever lies beyond saturates.
    """
    if isinstance(number_format, ScaledFormat):
        saturates, dtypes = number_format.element.saturates, (torch.int64, torch.float64)
    else:
        saturates, dtypes = number_format.saturates, (torch.int32, torch.float32)

    def number(bits: int) -> Tensor:
        return torch.tensor([bits], dtype=dtypes[0], device="cpu").view(dtypes[1])

    def last_kept(sign: int) -> float:
        infinity = torch.tensor(torch.inf, dtype=dtypes[1], device="cpu").view(dtypes[0]).item()
        magnitudes = range(int(infinity) + 1)
        beyond = bisect.bisect_left(
            magnitudes, True, key=lambda bits: bool(saturates(sign * number(bits)))
        )
        return sign * number(beyond - 1).item()

    return last_kept(-1), last_kept(1)


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


def _ternary(number_format: Ternary, dtype: torch.dtype) -> Plan:
    """Without the threshold, which follows the tensor."""
    return Plan(core=TERNARY, scale=GIVEN, limit=torch.finfo(dtype).max, block=1)


def measures_mean(number_format: Ternary) -> bool:
    """True where the threshold follows the mean magnitude of the tensor."""
    named = (number_format.threshold, number_format.median, number_format.max, number_format.mean)
    return all(value is None or value is False for value in named[:3]) and (
        named[3] is None or isinstance(named[3], bool)
    )


def _residual(number_format: BinaryResidual, dtype: torch.dtype) -> Plan | None:
    """Without the factors, which follow the tensor."""
    # A factor beyond float32 would be infinite.
    are_floats = all(abs(s) <= torch.finfo(torch.float32).max for s in number_format.scales or ())
    if number_format.stochastic or not are_floats:
        return None
    low = -1.0 if number_format.bipolar else 0.0
    return Plan(core=RESIDUAL, scale=NONE, low=low, limit=torch.finfo(dtype).max, block=1)


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
    if isinstance(number_format, ScaleInteger):
        return _scaled_integer(number_format)
    if isinstance(number_format, Binary) or isinstance(scaling, GivenScale):
        return {"scale": GIVEN}
    if isinstance(number_format, BlockFormat):
        block = {"block": int(number_format.groups.nominal_size)}
        if isinstance(scaling, SharedExponent):
            rule = _shared_exponent(scaling)
            return None if rule is None else {**block, **rule}
        if isinstance(scaling, ScaledFloatScale) and isinstance(scaling.element, Minifloat):
            return {**block, **_small_float(scaling, scaling.element)}
    return None


def _scaled_integer(number_format: ScaleInteger) -> dict[str, Any]:
    return {
        "scale": GIVEN,
        "small_divisor": number_format.element.largest_code,
        "magnitude_mask": EVERY_MAGNITUDE if number_format.is_signed else EVERY_BIT,
    }


def _shared_exponent(scaling: SharedExponent) -> dict[str, Any] | None:
    found = scaling.turn()
    if found is None:
        return None
    offset, turn = found
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
