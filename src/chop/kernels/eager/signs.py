"""Chunks of numbers rounded to two or three values, and to integers."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.kernels.eager.chunked import FLOAT32, Buffers
from chop.kernels.eager.rounders import FixedRounder


def round_integers(
    x: Tensor, out: Tensor, buffers: Buffers, rounder: FixedRounder, floors: bool
) -> None:
    """Two's-complement fixed point.

    Args:
        x: float32, any shape.
        out: the same shape; may be `x`.
        buffers: lent from.
        rounder: the numbers.
        floors: rounds down instead of to nearest.
    """
    v = buffers.lane("work", rounder.real, x.shape)
    v.values.copy_(x)
    rounder.round_(v, buffers)
    if floors:
        above = buffers.get("above", rounder.real.dtype, x.shape)
        torch.gt(v.values, x, out=above)
        v.values.sub_(above, alpha=rounder.step).clamp_min_(rounder.low)
    out.copy_(v.values)


def round_signs(x: Tensor, out: Tensor, buffers: Buffers, scale: Tensor, is_bipolar: bool) -> None:
    """The scale with the sign of each number, zeros counting as positive; or the scale and 0.

    Args:
        x: float32, any shape.
        out: the same shape; may be `x`.
        buffers: lent from.
        scale: float32, of a shape that fits, not negative.
        is_bipolar: False for {0, scale}.
    """
    v = buffers.lane("signs", FLOAT32, x.shape)
    zero = buffers.constant(0.0, x.dtype)
    if is_bipolar:
        torch.add(x, zero, out=v.values)
        v.bits.bitwise_and_(buffers.constant(FLOAT32.sign, v.bits.dtype))
        v.bits.bitwise_or_(scale.view(v.bits.dtype))
    else:
        torch.ge(x, zero, out=v.values).mul_(scale)
    # A scale of zero keeps its sign.
    _with_nan(v.values, x, out, buffers, zero=-0.0)


def round_ternary(
    x: Tensor, out: Tensor, buffers: Buffers, threshold: float, scale: Tensor | None
) -> None:
    """The scale with the sign of each number beyond the threshold, else +0.

    Args:
        x: float32, any shape.
        out: the same shape; may be `x`.
        buffers: lent from.
        threshold: a float32, not negative.
        scale: float32, of a shape that fits; None for 1.
    """
    v = buffers.get("signs", x.dtype, x.shape)
    torch.hardshrink(x, threshold, out=v).sign_()
    if scale is not None:
        v.mul_(scale)
    _with_nan(v, x, out, buffers, zero=0.0)


def _with_nan(v: Tensor, x: Tensor, out: Tensor, buffers: Buffers, zero: float) -> None:
    """Writes v + zero to `out`, or NaN where `x` is: `zero` times a number from 1 to 2."""
    carrier = buffers.get("carrier", x.dtype, x.shape)
    torch.clamp(x, 1.0, 2.0, out=carrier)
    torch.add(v, carrier, alpha=zero, out=out)
