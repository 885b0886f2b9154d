"""The scales of blocks, found from their magnitudes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from chop.kernels.eager.chunked import FLOAT32, FLOAT64, Buffers, Lane, Real
from chop.kernels.eager.cores import MinifloatCore
from chop.kernels.plan import DOUBLE_BITS, Plan

LIFT = 24
"""Magnitudes are multiplied by 2^LIFT, so that subnormal ones become normal."""
LIFTABLE_EXPONENT = 103
"""Magnitudes below 2^LIFTABLE_EXPONENT stay finite in float32 when they are lifted."""


class Scale(NamedTuple):
    """What blocks are divided and multiplied by, (blocks, 1).

    Attributes:
        inverse: of the divisor; None where it is no power of two.
        divisor: what to divide by; None where there is an inverse.
        factor: what to multiply by; NaN makes the block NaN.
    """

    inverse: Tensor | None
    divisor: Tensor | None
    factor: Tensor

    def divide(self, v: Tensor, out: Tensor) -> None:
        """Writes the quotients; `out` may be `v`."""
        if self.inverse is not None:
            torch.mul(v, self.inverse, out=out)
        else:
            torch.div(v, self.divisor, out=out)


@dataclass(frozen=True)
class Tops:
    """The largest finite magnitudes of blocks, (blocks, 1).

    Attributes:
        values: the magnitudes.
        top: the largest of them.
        poisoned: boolean, True for blocks with a NaN or an infinity; None if there are none.
    """

    values: Tensor
    top: float
    poisoned: Tensor | None


def tops_of(magnitudes: Lane, real: Real, buffers: Buffers) -> Tops:
    """The largest magnitudes of blocks.

    Args:
        magnitudes: (blocks, elements); they stay as they are.
        real: their dtype.
        buffers: the result is lent from them.
    """
    # As integers, the bits of magnitudes have the same order, NaN and infinities above all.
    tops = buffers.lane("tops", real, torch.Size((magnitudes.bits.size(0), 1)))
    torch.amax(magnitudes.bits, -1, keepdim=True, out=tops.bits)
    top = tops.values.max().item()
    if math.isfinite(top):
        return Tops(tops.values, top, None)
    poisoned = tops.bits >= real.infinite
    finite = magnitudes.values.nan_to_num(nan=0.0, posinf=0.0)
    torch.amax(finite, -1, keepdim=True, out=tops.values)
    return Tops(tops.values, tops.values.max().item(), poisoned)


@dataclass(frozen=True)
class PowerOfTwo:
    """2^E for each block: `formats.scaling.SharedExponent`.

    Attributes:
        real: the dtype of the scales.
        offset: E for a magnitude of 1.
        rise: what is added to a magnitude's bits to carry where E goes up early.
        lowest: the smallest E.
        highest: the largest E.
        has_nan: NaN holds for poisoned blocks.
    """

    real: Real
    offset: int
    rise: int
    lowest: int
    highest: int
    has_nan: bool

    @classmethod
    def of(cls, plan: Plan, real: Real, halvings: int = 0) -> PowerOfTwo:
        """The rule of a plan for elements that were divided by 2^halvings."""
        one = 1 << real.fraction_bits
        return cls(
            real,
            plan.offset + halvings,
            one - (plan.carry << real.fraction_bits >> DOUBLE_BITS),
            plan.lowest_exponent + halvings,
            plan.largest_exponent + halvings,
            bool(plan.has_nan),
        )

    @property
    def is_representable(self) -> bool:
        """Whether 2^E and 2^-E are numbers of `real`, for magnitudes that `takes` lets pass."""
        is_float32 = self.real is FLOAT32
        largest = LIFTABLE_EXPONENT + self.offset if is_float32 else self.highest
        return (
            self.lowest >= -self.real.bias
            and min(largest, self.highest) < self.real.bias
            and self.offset < LIFT
        )

    def takes(self, tops: Tops) -> bool:
        """False for magnitudes too large to be lifted."""
        return self.real is FLOAT64 or tops.top < 2.0**LIFTABLE_EXPONENT

    def __call__(self, tops: Tops, buffers: Buffers) -> Scale:
        """The scales of blocks with these magnitudes."""
        real, shape = self.real, tops.values.shape
        inverse, bits = buffers.lane("inverse", real, shape)
        factor = buffers.get("factor", real.dtype, shape)
        torch.mul(tops.values, buffers.constant(2.0**LIFT, real.dtype), out=inverse)
        if self.rise:
            bits.add_(buffers.constant(self.rise, bits.dtype))
        # The exponent field of the lifted magnitude, then that of 2^-E.
        fraction_bits = buffers.constant(real.fraction_bits, bits.dtype)
        lifted = real.bias + LIFT - self.offset
        bits.bitwise_right_shift_(fraction_bits)
        bits.clamp_(self.lowest + lifted, self.highest + lifted)
        torch.sub(buffers.constant(lifted + real.bias, bits.dtype), bits, out=bits)
        bits.bitwise_left_shift_(fraction_bits)
        torch.reciprocal(inverse, out=factor)
        if self.has_nan and tops.poisoned is not None:
            factor.masked_fill_(tops.poisoned, torch.nan)
        return Scale(inverse, None, factor)


@dataclass(frozen=True)
class SmallFloat:
    """A small float times a float32 of the tensor: `formats.scaling.ScaledFloatScale`.

    Attributes:
        core: the small floats, in float64.
        largest: the largest element, by which magnitudes are divided.
        of_tensor: the factor of all scales.
    """

    core: MinifloatCore
    largest: float
    of_tensor: float

    def takes(self, tops: Tops) -> bool:
        """Any magnitude will do."""
        return True

    def __call__(self, tops: Tops, buffers: Buffers) -> Scale:
        """The scales of blocks with these magnitudes."""
        lane = buffers.lane("factor", FLOAT64, tops.values.shape)
        factor = lane.values
        of_tensor = buffers.constant(self.of_tensor, factor.dtype)
        torch.div(tops.values, buffers.constant(self.largest, factor.dtype), out=factor)
        factor.div_(of_tensor)
        self.core.round_(lane, buffers)
        factor.mul_(of_tensor)
        # Where the factor is zero, any divisor will do.
        divisor = factor.clamp_min(self.core.smallest * self.of_tensor)
        if tops.poisoned is not None:
            factor.masked_fill_(tops.poisoned, torch.nan)
        return Scale(None, divisor, factor)
