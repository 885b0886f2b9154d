"""Affine maps and thresholds of each channel: batch norms on codes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.integer.base import (
    MAX_BITS,
    NO_CALL,
    Call,
    IntegerOperator,
    IntegerOptions,
    check_loadable,
    check_width,
)
from chop.nn.integer.edge import Edge, Grid, bit_width
from chop.nn.quantized import QuantizedOperator
from chop.nn.quantized.codes import rounded_parameter
from chop.private.torch_api import BatchNorm

FACTOR_BITS = 17
"""Bits of the magnitude of the largest factor."""
SHIFT_BITS = 40
"""Bits of the magnitude of the largest shift, at most, unless products have more."""
MARGIN_BITS = 2
"""Bits that loadable factors and shifts may grow by, so that other norms fit."""
MOST_THRESHOLDS = 15
"""Maximum thresholds of a channel: those of a reader with 4 bits."""


class ChannelMap(NamedTuple):
    """The map y = a k + b of codes k, for each channel.

    Attributes:
        factors: a, float64, one per channel, in a shape that broadcasts with the codes.
        shifts: b, in the same shape.
    """

    factors: Tensor
    shifts: Tensor

    @classmethod
    def of(cls, norm: nn.Module | None, read: Edge, dims: int) -> ChannelMap:
        """Returns the map of a batch norm with its running statistics.

        Args:
            norm: the batch norm, quantized or float.
            read: edge of its input; steps per channel have to be along the second dimension.
            dims: dimensions of the input, including the batch.
        Raises:
            ConfigError: if the norm has no running statistics, numbers that are not finite, or an
                input with steps along another dimension.
        """
        assert isinstance(norm, BatchNorm)
        if norm.running_mean is None or norm.running_var is None:
            raise ConfigError("BatchNorm: expected running statistics; train with them.")
        if read.step.dim() and read.axis != 1 - dims:
            raise ConfigError(
                "BatchNorm: its input has scales along another dimension than the channels; use "
                "one scale for the weight of the layer ahead of it."
            )
        factors = (norm.running_var.double() + norm.eps).rsqrt()
        channels = cls._scaled(norm, factors, -norm.running_mean.double())
        factors, shifts = channels.factors * read.step / read.divisor, channels.shifts
        if not bool((factors + shifts).isfinite().all()):
            raise ConfigError(
                "BatchNorm: expected finite statistics and parameters without a negative variance; "
                "load a checkpoint that has them, or train again."
            )
        shape = -1, *[1] * (dims - 2)
        return cls(factors.view(shape), shifts.view(shape))

    @classmethod
    def from_group_norm(cls, norm: nn.Module, step: float, dims: int) -> ChannelMap:
        """Returns the scale and shift of a group norm.

        Args:
            norm: the group norm.
            step: step of normalized values.
            dims: dimensions of the input, including the batch.
        """
        assert isinstance(norm, nn.GroupNorm)
        zeros = torch.zeros(norm.num_channels, dtype=torch.float64)
        factors, shifts = cls._scaled(norm, zeros + 1, zeros)
        shape = -1, *[1] * (dims - 2)
        return cls((factors * step).view(shape), shifts.view(shape))

    @classmethod
    def _scaled(
        cls, norm: BatchNorm | nn.GroupNorm, factors: Tensor, centers: Tensor
    ) -> ChannelMap:
        """Returns (x + center) factor, followed by the scale and shift of a norm's parameters."""
        if norm.weight is not None:
            factors = factors * _parameter(norm, "weight")
        shifts = centers * factors
        if norm.bias is not None:
            shifts = shifts + _parameter(norm, "bias")
        return cls(factors, shifts)


def _parameter(norm: BatchNorm | nn.GroupNorm, name: str) -> Tensor:
    if isinstance(norm, QuantizedOperator):
        return rounded_parameter(norm, name).double()
    value: Tensor = getattr(norm, name)
    return value.detach().double()


class IntegerBatchNorm(IntegerOperator):
    """Batch norm with running statistics: y = x m_c + b_c for channel c.

    The step of y is a power of two, such that the largest m has 17 bits and a sign. It is larger if
    b would need more than 40 bits and more than the products. Factors and shifts are rounded to it;
    the reader rounds the result. Loadable ones have two bits fewer, which the norms of other
    weights may use; the bounds hold for any of 18 and 41 bits.

    Width: the bits of the input and those of m, plus one for b.

    Args:
        read: edge of the input.
        channels: the map of each channel.
        is_loadable: whether factors and shifts are written at run time.
        like: operator of a circuit whose step is taken, if they are; None to choose the step.

    Attributes:
        widths: bits of a factor and of a shift.

    Source: Ioffe and Szegedy 2015, arXiv:1502.03167, algorithm 2.
    """

    circuit_numbers = "factor"
    factor: Tensor
    shift: Tensor
    reads_exact = True

    def __init__(
        self,
        read: Edge,
        channels: ChannelMap,
        is_loadable: bool = False,
        like: nn.Module | None = None,
    ) -> None:
        # More bits of a shift, beyond those of the products, would only widen what follows.
        shift_bits = min(max(SHIFT_BITS, read.bits + FACTOR_BITS), MAX_BITS)
        if isinstance(like, IntegerBatchNorm):
            exponent = math.frexp(like.out.scalar_step)[1] - 1
        else:
            margin = MARGIN_BITS if is_loadable else 0
            exponent = _exponent(channels, FACTOR_BITS - margin, shift_bits - margin)
        factor, shift = ((part * 2.0**-exponent).round().long() for part in channels)
        where, factors, shifts = type(self).__name__, factor, shift
        if is_loadable:
            limits = (1 << FACTOR_BITS) - 1, (1 << shift_bits) - 1
            for name, part, limit in zip(("scale", "shift"), (factor, shift), limits, strict=True):
                check_loadable(where, name, part, limit)
            signs = torch.tensor([[-1, -1, 1, 1], [-1, 1, -1, 1]])
            factors, shifts = signs * torch.tensor(limits).view(2, 1)
        else:
            zeros = _common_zeros(torch.cat([factor.flatten(), shift.flatten()]))
            factors, shifts = factor, shift = factor >> zeros, shift >> zeros
            exponent += zeros
        for end in (read.low, read.high):
            product = end * int(factors.abs().max())
            check_width(where, -abs(product), abs(product) + int(shifts.abs().max()))
        ends = torch.stack([read.low * factors + shifts, read.high * factors + shifts])
        super().__init__(Edge.of(2.0**exponent, int(ends.min()), int(ends.max())))
        self.is_loadable = is_loadable
        self.widths = _width(factors), _width(shifts)
        self.register_buffer("factor", factor)
        self.register_buffer("shift", shift)

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class."""
        (read,) = inputs
        channels = ChannelMap.of(module, read, len(call.shapes[0]))
        return cls(read, channels, options.is_loadable, call.like)

    def forward(self, codes: Tensor) -> Tensor:
        """Maps (N, C, ...) to int64 of the same shape."""
        return codes * self.factor + self.shift


def _width(numbers: Tensor) -> int:
    return bit_width(int(numbers.min()), int(numbers.max()))


def _exponent(channels: ChannelMap, factor_bits: int, shift_bits: int) -> int:
    """Returns the exponent of the least step with these bits for the magnitudes."""
    exponents = []
    for part, bits in zip(channels, (factor_bits, shift_bits), strict=True):
        if largest := float(part.abs().max()):
            exponent = math.frexp(largest)[1] - bits
            # Rounding up can need one bit more.
            exponents.append(exponent + (round(largest * 2.0**-exponent) == 1 << bits))
    return max(exponents, default=0)


def _common_zeros(values: Tensor) -> int:
    """Returns the number of low bits that are zero in all values."""
    bits = 0
    for value in values.tolist():
        bits |= value
    return (bits & -bits).bit_length() - 1 if bits else 0


class IntegerThresholds(IntegerOperator):
    """Batch norm and rounding to few codes: y = low + stride * #{k: v >= t_ck}, channel c.

    v is x for a positive factor of the channel and ~x = -x - 1 for a negative one. The thresholds
    are exact: t_ck is the least v from which on the rounded result of the norm, in float64, is at
    least the k-th code of the reader above the lowest.

    Width: that of the reader; thresholds have one bit more than the input.

    Args:
        read: edge of the input.
        channels: the map of each channel.
        grid: grid of the reader, at most 16 codes.
        is_loadable: whether thresholds are written at run time; the bounds are all codes then.

    Source: successive thresholding, Umuroglu and Jahre 2017, arXiv:1709.04060, section 3.
    """

    thresholds: Tensor
    inversion: Tensor

    def __init__(
        self, read: Edge, channels: ChannelMap, grid: Grid, is_loadable: bool = False
    ) -> None:
        codes = reader_codes(grid)
        is_negative = channels.factors < 0
        low = torch.where(is_negative, ~read.high, read.low)
        high = torch.where(is_negative, ~read.low, read.high)
        # A circuit has at least one threshold, which nothing reaches if there is one code.
        thresholds = _thresholds(channels, grid, codes[1:] or [codes[0] + 1], low, high)
        counts = [(end >= thresholds).sum(0) for end in (low, high)]
        stride = codes[1] - codes[0] if len(codes) > 1 else 1
        least, most = (0, len(thresholds)) if is_loadable else (counts[0].min(), counts[1].max())
        ends = [codes[0] + stride * int(count) for count in (least, most)]
        super().__init__(Edge.of(grid.step, *ends))
        self.low, self.stride, self.is_loadable = codes[0], stride, is_loadable
        self.register_buffer("thresholds", thresholds)
        self.register_buffer("inversion", -is_negative.long())

    def forward(self, codes: Tensor) -> Tensor:
        """Maps (N, C, ...) to the codes of the reader, int64, of the same shape."""
        v = codes ^ self.inversion  # all bits of -1 are set
        counts = torch.zeros_like(v)
        for threshold in self.thresholds:
            counts += v >= threshold
        return self.low + self.stride * counts


def reader_codes(grid: Grid) -> list[int]:
    """Returns the codes of a grid in ascending order.

    >>> reader_codes(Grid(1.0, -1, 1, "sign")), reader_codes(Grid(0.5, 0, 3))
    ([-1, 1], [0, 1, 2, 3])
    """
    return [grid.low, grid.high] if grid.rounding == "sign" else [*range(grid.low, grid.high + 1)]


def _thresholds(
    channels: ChannelMap, grid: Grid, codes: Sequence[int], low: Tensor, high: Tensor
) -> Tensor:
    """Returns the least v of each code and channel by bisection, `high` + 1 if there is none.

    Args:
        channels: the map of each channel.
        grid: grid of the reader.
        codes: ascending codes, without the lowest.
        low: smallest v of each channel, int64.
        high: largest v.
    """
    wanted = torch.tensor(codes, dtype=torch.int64).view(-1, *[1] * low.dim())
    first, last = (end.expand(len(codes), *low.shape).clone() for end in (low, high + 1))
    while bool((first < last).any()):
        middle = (first + last) >> 1
        x = torch.where(channels.factors < 0, ~middle, middle).double()
        reached = grid.codes(x * channels.factors + channels.shifts) >= wanted
        is_open = first < last
        last = torch.where(is_open & reached, middle, last)
        first = torch.where(is_open & ~reached, middle + 1, first)
    return first
