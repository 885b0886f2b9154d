"""`binary_residual`: the levels of a chunk are found again for each statistic, and not kept."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from chop.formats import BinaryResidual
from chop.formats.binary import mean_magnitude
from chop.formats.learnt import given
from chop.kernels.eager.chunked import FLOAT64, Buffers, Lane, pairs
from chop.kernels.eager.measure import bounds


def level_scales(x: Tensor, number_format: BinaryResidual) -> list[Tensor]:
    """float64 scalars that are float32 numbers: the factors of the levels.

    Args:
        x: one-dimensional, floating.
        number_format: with the factors, or how many of them to measure.
    """
    if number_format.scales is not None:
        return list(given(number_format.scales, x).double())
    scales: list[Tensor] = []
    for _ in range(number_format.levels if number_format.residual_sign else 1):
        scales.append(_mean_of_rest(x, scales, number_format.bipolar))
    return scales


def _mean_of_rest(x: Tensor, scales: list[Tensor], is_bipolar: bool) -> Tensor:
    """The mean magnitude of what those levels leave, as float32 rounds it."""
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for part, _, buffers in pairs(x, x):
        total += _rest(part, scales, is_bipolar, buffers).values.abs_().sum()
    low, high = bounds(total, torch.full_like(total, x.numel()), x.numel())
    if low.float() == high.float():
        return low.float().double()
    rest = _rest(x, scales, is_bipolar, Buffers(x.numel(), x.device))
    return mean_magnitude(rest.values).float().double().squeeze()


def _rest(x: Tensor, scales: list[Tensor], is_bipolar: bool, buffers: Buffers) -> Lane:
    """float64: what is left of a chunk. There is no -0 in it, which would have the sign of +0."""
    rest = buffers.lane("rest", FLOAT64, x.shape)
    rest.values.copy_(x).add_(buffers.constant(0.0, FLOAT64.dtype))
    for scale in scales:
        rest.values.sub_(_level(rest, scale, is_bipolar, buffers))
    return rest


def _level(rest: Lane, scale: Tensor, is_bipolar: bool, buffers: Buffers) -> Tensor:
    level = buffers.lane("level", FLOAT64, rest.values.shape)
    if not is_bipolar:
        zero = buffers.constant(0.0, FLOAT64.dtype)
        return torch.ge(rest.values, zero, out=level.values).mul_(scale)
    sign = buffers.constant(FLOAT64.sign, FLOAT64.bits_dtype)
    torch.bitwise_and(rest.bits, sign, out=level.bits)
    level.bits.bitwise_or_(scale.view(FLOAT64.bits_dtype))
    return level.values


def round_residual(
    x: Tensor, out: Tensor, buffers: Buffers, scales: list[Tensor], is_bipolar: bool, limit: float
) -> None:
    """The sum of the levels of each number.

    Args:
        x: float32, any shape.
        out: the same shape; may be `x`.
        buffers: lent from.
        scales: float64 scalars, the factors of the levels; none is negative.
        is_bipolar: False for levels of 0 and 1.
        limit: sums beyond become this.
    """
    rest = _rest(x, [], is_bipolar, buffers)
    total = buffers.get("total", FLOAT64.dtype, x.shape)
    for index, scale in enumerate(scales):
        level = _level(rest, scale, is_bipolar, buffers)
        if index == 0:
            torch.add(level, buffers.constant(0.0, FLOAT64.dtype), out=total)
        else:
            total.add_(level)
        if index < len(scales) - 1:
            rest.values.sub_(level)
    if limit < math.inf:
        total.clamp_(-limit, limit)
    # A level has no NaN, but the rest has: it comes back here.
    torch.add(total, rest.values.clamp_(1.0, 2.0), alpha=0.0, out=total)
    out.copy_(total)
