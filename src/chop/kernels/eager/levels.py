"""Sums of signs: the levels of a chunk are found again for each statistic, and not kept."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from chop.formats.layout import Layout
from chop.formats.scaling import StaticScale
from chop.formats.statistic import mean_magnitude
from chop.kernels.eager.chunked import FLOAT32, FLOAT64, Buffers, Lane, Real, pairs
from chop.kernels.eager.measure import bounds


def factors_of_levels(x: Tensor, layout: Layout, is_bipolar: bool) -> list[Tensor]:
    """float64 scalars that are float32 numbers: the factors of the levels.

    Args:
        x: one-dimensional, floating.
        layout: with the factors, or how many of them to measure.
        is_bipolar: False for levels of 0 and 1.
    """
    if isinstance(layout.scaling, StaticScale):
        return list(layout.scaling.known(x.device).double())
    scales: list[Tensor] = []
    for _ in range(layout.levels or 0):
        scales.append(_mean_of_rest(x, scales, is_bipolar))
    return scales


def _mean_of_rest(x: Tensor, scales: list[Tensor], is_bipolar: bool) -> Tensor:
    """The mean magnitude of what those levels leave, as float32 rounds it."""
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for part, _, buffers in pairs(x, x):
        total += _rest(part, scales, is_bipolar, FLOAT64, buffers).values.abs_().sum()
    low, high = bounds(total, torch.full_like(total, x.numel()), x.numel())
    if low.float() == high.float():
        return low.float().double()
    rest = _rest(x, scales, is_bipolar, FLOAT64, Buffers(x.numel(), x.device))
    return mean_magnitude(rest.values).float().double().squeeze()


def _rest(x: Tensor, scales: list[Tensor], is_bipolar: bool, real: Real, buffers: Buffers) -> Lane:
    """What is left of a chunk. There is no -0 in it, which would have the sign of +0."""
    rest = buffers.lane("rest", real, x.shape)
    zero = buffers.constant(0.0, real.dtype)
    if x.dtype == real.dtype:
        torch.add(x, zero, out=rest.values)
    else:
        rest.values.copy_(x).add_(zero)
    for scale in scales:
        rest.values.sub_(_level(rest, scale, is_bipolar, real, buffers))
    return rest


def _level(rest: Lane, scale: Tensor, is_bipolar: bool, real: Real, buffers: Buffers) -> Tensor:
    level = buffers.lane("level", real, rest.values.shape)
    if not is_bipolar:
        zero = buffers.constant(0.0, real.dtype)
        return torch.ge(rest.values, zero, out=level.values).mul_(scale)
    torch.bitwise_and(rest.bits, buffers.constant(real.sign, real.bits_dtype), out=level.bits)
    level.bits.bitwise_or_(scale.view(real.bits_dtype))
    return level.values


def round_levels(
    x: Tensor, out: Tensor, buffers: Buffers, scales: list[Tensor], is_bipolar: bool, limit: float
) -> None:
    """The sum of the levels of each number.

    Of two levels, float32 has the sign of the difference and the rounded sum: more have to be in
    float64, as the reference has them.

    Args:
        x: float32, any shape.
        out: the same shape; may be `x`.
        buffers: lent from.
        scales: scalars, the factors of the levels, in the dtype to compute in; none is negative.
        is_bipolar: False for levels of 0 and 1.
        limit: sums beyond become this.
    """
    real = FLOAT64 if scales[0].dtype == torch.float64 else FLOAT32
    rest = _rest(x, [], is_bipolar, real, buffers)
    total = buffers.get("total", real.dtype, x.shape)
    for index, scale in enumerate(scales):
        level = _level(rest, scale, is_bipolar, real, buffers)
        torch.add(level, total if index else buffers.constant(0.0, real.dtype), out=total)
        if index < len(scales) - 1:
            rest.values.sub_(level)
    if limit < math.inf:
        total.clamp_(-limit, limit)
    # A level has no NaN, but the rest has: it comes back here.
    torch.add(total, rest.values.clamp_(1.0, 2.0), alpha=0.0, out=total)
    out.copy_(total)
