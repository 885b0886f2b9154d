"""PReLU on codes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.integer.affine import FACTOR_BITS, MARGIN_BITS
from chop.nn.integer.base import (
    NO_CALL,
    Call,
    IntegerOperator,
    IntegerOptions,
    check_loadable,
    check_width,
)
from chop.nn.integer.edge import Edge, bit_width


class IntegerPReLU(IntegerOperator):
    """PReLU: y = x 2^s from zero on, and y = x m_c below zero for channel c.

    The step of y is 2^-s times that of x, such that the largest slope m has 17 bits and a sign.
    Slopes are rounded to multiples of 2^-s; s is at least 0. The reader rounds the result. Loadable
    slopes have two bits fewer, and any of 18 bits are within the bounds.

    Width: the bits of the input and those of 2^s or m.

    Args:
        read: edge of the input.
        slopes: float64, in a shape that broadcasts with the codes: one, or one per channel.
        is_loadable: whether slopes are written at run time.
        like: operator of a circuit whose s is taken, if they are; None to choose it.

    Attributes:
        width: bits of a slope.

    Source: He et al. 2015, arXiv:1502.01852, equation 1.
    """

    circuit_numbers = "factor"
    factor: Tensor
    shift: int
    reads_exact = True

    def __init__(
        self,
        read: Edge,
        slopes: Tensor,
        is_loadable: bool = False,
        like: nn.Module | None = None,
    ) -> None:
        if not bool(slopes.isfinite().all()):
            raise ConfigError("PReLU: expected finite slopes; load a checkpoint that has them.")
        bits = FACTOR_BITS - MARGIN_BITS * is_loadable
        places = max(bits - math.frexp(float(slopes.abs().max()))[1], 0)
        if isinstance(like, IntegerPReLU):
            places = like.shift
        factor = (slopes * 2.0**places).round().long()
        if is_loadable:
            limit = (1 << FACTOR_BITS) - 1
            check_loadable(type(self).__name__, "slope", factor, limit)
            slope_ends = -limit, limit
        else:
            # Trailing zeros of all slopes would only widen the result.
            while places and not bool((factor & 1).any()):
                factor, places = factor >> 1, places - 1
            slope_ends = int(factor.min()), int(factor.max())
        for end in (read.low, read.high):
            check_width(type(self).__name__, *sorted((end << places, -end << places)))
        below = [min(read.low, 0) * slope for slope in slope_ends]
        above = max(read.high, 0) << places
        ends = min(*below, 0), max(*below, above)
        super().__init__(replace(read, step=read.step * 2.0**-places, low=ends[0], high=ends[1]))
        self.register_buffer("factor", factor)
        self.shift, self.is_loadable, self.width = places, is_loadable, bit_width(*slope_ends)

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class; `call` has the shapes."""
        (read,), shape = inputs, call.shapes[0]
        assert isinstance(module, nn.PReLU)
        slopes = module.weight
        # torch's channels are the second dimension.
        by_channel = slopes.detach().double().view(-1, *[1] * (len(shape) - 2))
        return cls(read, by_channel, options.is_loadable, call.like)

    def forward(self, codes: Tensor) -> Tensor:
        """Maps (N, C, ...) to int64 of the same shape."""
        return torch.where(codes < 0, codes * self.factor, codes << self.shift)
