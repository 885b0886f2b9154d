"""Rounding of integers: the only code that drops bits."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Rounding = Literal["nearest_even", "floor"]
LARGEST_SHIFT = 62


def saturate(v: Tensor, low: int, high: int) -> Tensor:
    """Clips `v`, int64, to `low` to `high`."""
    return v.clamp(low, high)


def round_shift(v: Tensor, shift: int | Tensor, rounding: Rounding = "nearest_even") -> Tensor:
    """Computes v / 2^shift as integers.

    The dropped bits are compared with a half: larger rounds up, smaller down, a half to the even
    side. Nothing overflows for shifts of 0 and more. For negative shifts the caller ensures that
    the result fits, or uses `shift_and_saturate`.

    Args:
        v: int64, any shape.
        shift: number of dropped bits; if negative, number of appended zeros. A tensor, int64, that
            broadcasts with `v`, has 0 to 62.
        rounding: to nearest, ties to even; or towards minus infinity.
    Returns: int64, shape of `v`.

    >>> round_shift(torch.tensor([5, 6, 7, -6]), 2)
    tensor([ 1,  2,  2, -2])

    Source: round-half-to-even, IEEE 754-2019, section 4.3.1, of a fixed-point number.
    """
    if isinstance(shift, int):
        if shift < 0:
            return v << -shift
        v, shift = _with_sticky_bit(v, shift - LARGEST_SHIFT), min(shift, LARGEST_SHIFT)
    quotient = v >> shift
    if rounding == "floor":
        return quotient
    fallen = v - (quotient << shift)
    # Comparing both distances avoids half = 1 << shift - 1, which does not exist for shift 0.
    missing = (torch.ones_like(v) << shift) - fallen
    is_up = (fallen > missing) | ((fallen == missing) & (quotient % 2 == 1))
    return quotient + is_up


def _with_sticky_bit(v: Tensor, shift: int) -> Tensor:
    """Returns floor(v / 2^shift), whose last bit is 1 if any dropped bit was.

    Later rounding can therefore distinguish an exact half.
    """
    if shift <= 0:
        return v
    shifted = v >> min(shift, 63)
    return shifted | (v != shifted << min(shift, 63)).long()


def shift_and_saturate(
    v: Tensor, shift: int, low: int, high: int, rounding: Rounding = "nearest_even"
) -> Tensor:
    """Computes `saturate(round_shift(v, shift, rounding), low, high)` without overflow.

    Args:
        v: int64, any shape.
        shift: any.
        low: at least -2^61.
        high: at most 2^61.
        rounding: as in `round_shift`.
    """
    if shift < 0:
        # Clipping first prevents overflow, and does not change the result.
        zeros = min(-shift, LARGEST_SHIFT)
        v = saturate(v, low >> zeros, -(-high >> zeros)) << zeros
        return saturate(v, low, high)
    return saturate(round_shift(v, shift, rounding), low, high)
