"""Chunks of numbers rounded to elements, or to elements times scales."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from chop.kernels.eager.chunked import FLOAT32, Buffers, Lane
from chop.kernels.eager.rounders import Rounder


def round_alone(x: Tensor, out: Tensor, buffers: Buffers, rounder: Rounder, limit: float) -> None:
    """Rounds a chunk to elements.

    Args:
        x: float32, any shape.
        out: float32, like `x`; may be `x`.
        buffers: lent from.
        rounder: the elements.
        limit: results beyond become this.
    """
    lane = buffers.lane("work", rounder.real, x.shape)
    if rounder.of_magnitudes and rounder.real is FLOAT32:
        torch.abs(x, out=lane.values)
    else:
        lane.values.copy_(x)
        _drop_signs(lane, rounder)
    _round(lane, x, out, buffers, rounder, None, limit)


def round_scaled(
    x: Tensor,
    out: Tensor,
    buffers: Buffers,
    scale: Tensor,
    rounder: Rounder,
    limit: float,
    is_power: bool,
) -> None:
    """Rounds a chunk to elements times scales.

    Args:
        x: float32, (lines, elements), or a part of one line.
        out: float32, like `x`; may be `x`.
        buffers: lent from.
        scale: in the dtype of the rounder, (lines, 1); NaN makes its line NaN.
        rounder: the elements.
        limit: results beyond become this.
        is_power: whether scales are powers of two whose inverses the dtype has too.
    """
    lane = buffers.lane("work", rounder.real, x.shape)
    if is_power:
        torch.mul(x, scale.reciprocal(), out=lane.values)
    else:
        torch.div(x, scale.masked_fill(scale == 0, 1.0), out=lane.values)
    _drop_signs(lane, rounder)
    _round(lane, x, out, buffers, rounder, scale, limit)


def _drop_signs(lane: Lane, rounder: Rounder) -> None:
    if rounder.of_magnitudes:
        lane.values.abs_()


def _round(
    lane: Lane,
    x: Tensor,
    out: Tensor,
    buffers: Buffers,
    rounder: Rounder,
    scale: Tensor | None,
    limit: float,
) -> None:
    """Writes what the numbers of a lane round to; they get the signs of `x` if they have none."""
    values = lane.values
    rounder.round_(lane, buffers)
    if scale is not None:
        values.mul_(scale)
    if limit < math.inf:
        values.clamp_(-limit, limit)
    if not rounder.of_magnitudes:
        out.copy_(values)
        return
    magnitudes = buffers.lane("work", FLOAT32, x.shape)
    if rounder.real is not FLOAT32:
        magnitudes.values.copy_(values)
    zero = buffers.constant(0.0, x.dtype)
    if not rounder.reads_negative_zero:
        x = torch.add(x, zero, out=out)
    _give_signs(x, magnitudes, out, buffers)
    if not rounder.has_negative_zero:
        out.add_(zero)


def _give_signs(x: Tensor, magnitudes: Lane, out: Tensor, buffers: Buffers) -> None:
    """Writes `copysign(magnitudes, x)` to `out`, in half its time."""
    signs = buffers.lane("spare", FLOAT32, x.shape).bits
    torch.bitwise_and(x.view(signs.dtype), buffers.constant(FLOAT32.sign, signs.dtype), out=signs)
    torch.bitwise_or(magnitudes.bits, signs, out=out.view(signs.dtype))


def have_inverses(scales: Tensor) -> bool:
    """Whether float32 has powers of two, float64, and their inverses; NaN aside."""
    low, high = scales.nan_to_num(nan=1.0).aminmax()
    return low.item() >= 2.0**-127 and high.item() <= 2.0**127
