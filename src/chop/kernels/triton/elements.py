"""Loading, storing and rounding of elements in Triton.

bfloat16 tensors are passed as int16 and converted by their bits, because Triton's interpreter does
not round like the hardware.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

SIGN = tl.constexpr(-(2**31))
INFINITE = tl.constexpr(0x7F800000)
FRACTION_BITS = tl.constexpr(23)
FLOAT32_MAX = tl.constexpr(torch.finfo(torch.float32).max)
WHOLE = tl.constexpr(2.0**23)  # from here on, every float32 is a whole number


@triton.jit
def bit_width(x):
    """Reinterprets float32 numbers as int32."""
    return x.to(tl.int32, bitcast=True)


@triton.jit
def bits_to_float(bits):
    """Reinterprets int32 as float32."""
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def load_float(pointer, mask):
    """Loads float32 from float32, float16, or bfloat16 stored as int16."""
    raw = tl.load(pointer, mask=mask, other=0)
    if pointer.dtype.element_ty == tl.int16:
        x = bits_to_float(raw.to(tl.int32) << 16)
    else:
        x = raw.to(tl.float32)
    return x


@triton.jit
def store_float(pointer, x, mask):
    """Rounds float32 to the dtype of the storage, ties to even, and stores it."""
    if pointer.dtype.element_ty == tl.int16:
        bits = bit_width(x)
        # Adds half of the dropped range, minus one bit unless the remaining part is odd.
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        # The addition can carry the fraction of a NaN into its sign.
        high = tl.where(x != x, 0x7FC0, rounded >> 16)
        tl.store(pointer, high.to(tl.int16), mask=mask)
    else:
        tl.store(pointer, x.to(pointer.dtype.element_ty), mask=mask)


def stored(x: Tensor) -> Tensor:
    """Returns `x` in the form that `load_float` and `store_float` take."""
    return x.view(torch.int16) if x.dtype is torch.bfloat16 else x


@triton.jit
def clamp(x, low, high):
    """Clamps numbers; NaN passes."""
    x = tl.where(x < low, low, x)
    return tl.where(x > high, high, x)


@triton.jit
def with_sign(magnitude, x):
    """Copies the signs of `x`, including those of zeros, to magnitudes."""
    return bits_to_float(bit_width(magnitude) | (bit_width(x) & SIGN))


@triton.jit
def power_of_two(exponent):
    """Returns 2^exponent as float32, for exponents from -126 to 127."""
    return bits_to_float((exponent + 127) << FRACTION_BITS)


@triton.jit
def times_power_of_two(x, exponent):
    """Returns x 2^exponent, rounded once, for exponents from -252 to 254."""
    # 2^exponent may exceed the range of float32. Its two halves do not.
    half = exponent >> 1
    return x * power_of_two(half) * power_of_two(exponent - half)


@triton.jit
def round_to_even(x):
    """Rounds to the nearest integer, ties to even."""
    magnitude = tl.abs(x)
    # Sums from 2^23 on have no fraction bits, so the addition itself rounds.
    return with_sign(tl.where(magnitude < WHOLE, (magnitude + WHOLE) - WHOLE, magnitude), x)


@triton.jit
def round_element(x, RULE: tl.constexpr):
    """Rounds float32 numbers to the elements of a format; `RULE` is one of chop's `ElementRule`."""
    if RULE.core == "fixed":
        y = _round_fixed(x, RULE)
    elif RULE.core == "minifloat":
        y = _round_minifloat(x, RULE)
    else:
        y = _round_log(x, RULE)
    return y


@triton.jit
def _round_fixed(x, RULE: tl.constexpr):
    steps = x * RULE.steps
    whole = round_to_even(steps)
    if RULE.floors:  # tl.floor treats subnormal numbers as zero on a GPU
        whole = tl.where(whole * RULE.step > x, whole - 1.0, whole)
    whole = clamp(whole, RULE.low, RULE.high)
    if not RULE.has_negative_zero:
        # -0 + 0 is +0.
        whole = whole + 0.0
    return whole * RULE.step


@triton.jit
def _round_minifloat(x, RULE: tl.constexpr):
    magnitude = tl.abs(x)
    bits = bit_width(magnitude)
    # A significand without fraction bits is its hidden bit, which is odd.
    is_odd = ((bits >> RULE.dropped) & 1) if RULE.dropped < FRACTION_BITS else 1
    rounded = (bits + ((1 << (RULE.dropped - 1)) - 1) + is_odd) >> RULE.dropped
    normal = bits_to_float(rounded << RULE.dropped)  # a carry went into the exponent
    subnormal = (magnitude + RULE.grid) - RULE.grid
    y = tl.where(magnitude < RULE.smallest_normal, subnormal, normal)
    return tl.where(x != x, x, with_sign(clamp(y, 0.0, RULE.largest), x))


@triton.jit
def _round_log(x, RULE: tl.constexpr):
    bits = bit_width(tl.abs(x))
    # The bias carries into the exponent field if the number rounds up.
    exponent = clamp((bits + RULE.rounding_bias) >> FRACTION_BITS, RULE.lowest, RULE.highest)
    y = bits_to_float(exponent << FRACTION_BITS)
    y = tl.where(x < 0, -y, y)
    y = tl.where(bits < RULE.zero_below, 0.0, y)
    return tl.where(x != x, x, y)
