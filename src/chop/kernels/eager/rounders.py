"""Rounding to the elements of formats, in place and without a branch.

Each rounder works in float32 or in float64, with the operations of the C++ loops. In float64 they
are exact for all data up to float32; in float32 where `exact_in_float32` says so.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from chop.kernels.eager.chunked import FLOAT32, Buffers, Lane, Real
from chop.kernels.plan import DOUBLE_BITS, FIXED, LOG, MINIFLOAT, LoopParameters

SMALLEST_NORMAL = 2.0**-126  # of float32
LARGEST_POWER = 2.0**127


class Rounder(ABC):
    """Rounds numbers to elements, in place; NaN stays NaN.

    Attributes:
        real: what it computes in.
        of_magnitudes: True if it takes magnitudes, and the caller gives the signs back.
        has_negative_zero: False if zeros are to be +0.
        reads_negative_zero: False if -0 counts as +0.
        largest: the largest magnitude of an element.
    """

    real: Real
    of_magnitudes: bool = True
    has_negative_zero: bool = True
    reads_negative_zero: bool = True
    largest: float

    @abstractmethod
    def round_(self, v: Lane, buffers: Buffers) -> None:
        """Replaces the numbers by elements."""


@dataclass(frozen=True)
class FixedRounder(Rounder):
    """Whole steps in a range.

    Attributes:
        step: a power of two.
        low: the smallest number.
        largest: the largest, at least as far from zero.
        of_magnitudes: True where zeros keep their signs.
    """

    real: Real
    step: float
    low: float
    largest: float
    of_magnitudes: bool

    def round_(self, v: Lane, buffers: Buffers) -> None:
        """The nearest step, ties to even.

        Numbers have the ulp `step` beside the magic one. `torch.round` would do as well, but it
        is divided among threads however small a tensor is, which takes milliseconds on a busy
        machine.
        """
        magic = buffers.constant(magic_number(self.real, self.step), v.values.dtype)
        v.values.clamp_(self.low, self.largest).add_(magic).sub_(magic)


def magic_number(real: Real, step: float) -> float:
    """What has the ulp `step`, with 2^(fraction bits - 1) steps to either side."""
    return 1.5 * 2.0**real.fraction_bits * step


@dataclass(frozen=True)
class MinifloatRounder(Rounder):
    """Small floating-point numbers, with less than half of `real`'s bits in the mantissa.

    Attributes:
        low: the binade below which numbers are subnormal.
        largest: the largest number.
        magic_factor: 2^(fraction bits - mantissa width).
    """

    real: Real
    low: float
    largest: float
    magic_factor: float

    @property
    def smallest(self) -> float:
        """The smallest number above zero."""
        return self.low * self.magic_factor * 2.0**-self.real.fraction_bits

    @property
    def is_exact(self) -> bool:
        """Whether the significands of `real` are long enough for `round_`."""
        return self.magic_factor >= 2.0 ** (self.real.fraction_bits // 2 + 2)

    def round_(self, v: Lane, buffers: Buffers) -> None:
        """The nearest number, ties to even: t v - (t v - v) for t = `magic_factor`.

        t v is a multiple of the ulp of v's binade, an even one where v is a tie. The ulp of the
        difference is the same, so that it is rounded to such a multiple, ties to even; or half of
        that for the first few v above a power of two, which are nearest to the power either way.
        Below 1.5 `low`, t 1.5 `low` has the right ulp.
        """
        w = buffers.get("spare", v.values.dtype, v.values.shape)
        v.values.clamp_max_(self.largest)
        torch.clamp_min(v.values, 1.5 * self.low, out=w)
        torch.sub(v.values, w, alpha=self.magic_factor, out=v.values)
        torch.add(v.values, w, alpha=self.magic_factor, out=v.values)


@dataclass(frozen=True)
class LogRounder(Rounder):
    """Powers of two.

    Attributes:
        low: the smallest.
        largest: the largest.
        increment_threshold: what 2^E is multiplied by to find the first number that goes up.
        zero_below: the magnitude below which numbers become zero; 0 if there is no zero.
    """

    real: Real
    low: float
    largest: float
    increment_threshold: float
    zero_below: float
    reads_negative_zero: bool = False

    @property
    def has_negative_zero(self) -> bool:  # type: ignore[override]
        """Of a zero, there is only +0; without one there is nothing to be done."""
        return self.zero_below == 0

    def round_(self, v: Lane, buffers: Buffers) -> None:
        """The power for each number: a carry out of the fraction takes it up.

        Clamping first is the same as last, since both ends are powers.
        """
        values, dtype = v.values, v.bits.dtype
        power = buffers.lane("spare", self.real, values.shape)
        if self.zero_below:
            kept = buffers.get("kept", values.dtype, values.shape)
            threshold = buffers.constant(_not_below(self.zero_below, values.dtype), values.dtype)
            torch.ge(values, threshold, out=kept)
        values.clamp_(self.low, self.largest)
        one = 1 << self.real.fraction_bits
        rise = buffers.constant(one - math.ceil((self.increment_threshold - 1) * one), dtype)
        torch.add(v.bits, rise, out=power.bits)
        power.bits.bitwise_and_(buffers.constant(self.real.infinite, dtype))
        if self.zero_below:
            power.values.mul_(kept)
        # A NaN is no power: it comes back here.
        torch.add(power.values, values, alpha=0.0, out=values)


def rounder_of(plan: LoopParameters, real: Real) -> Rounder | None:
    """The rounder of a plan; None for another kind of element."""
    if plan.core == FIXED:
        keeps_sign = math.copysign(1.0, plan.zero) < 0
        return FixedRounder(
            real, plan.step, plan.low * plan.step, plan.high * plan.step, keeps_sign
        )
    if plan.core == MINIFLOAT:
        magic_factor = plan.magic_factor * 2.0 ** (real.fraction_bits - DOUBLE_BITS)
        rounder = MinifloatRounder(real, plan.low, plan.high, magic_factor)
        return rounder if rounder.is_exact else None
    if plan.core == LOG:
        return LogRounder(real, plan.low, plan.high, plan.increment_threshold, plan.zero_below)
    return None


def exact_in_float32(rounder: Rounder, is_scaled: bool) -> bool:
    """Whether a float32 rounder gives the bits of a float64 one.

    Args:
        rounder: in float32.
        is_scaled: numbers were multiplied by a power of two, and those that came out below the
            smallest normal one may have lost bits.
    """
    assert rounder.real is FLOAT32
    if isinstance(rounder, FixedRounder):
        # What vanishes is far below half a step.
        is_in_reach = rounder.largest <= rounder.step * 2.0 ** (FLOAT32.fraction_bits - 1)
        return is_in_reach and 2.0**-24 <= rounder.step <= 1
    if isinstance(rounder, LogRounder):
        return rounder.low >= SMALLEST_NORMAL and rounder.largest <= LARGEST_POWER
    assert isinstance(rounder, MinifloatRounder)
    if rounder.low < SMALLEST_NORMAL or rounder.largest * rounder.magic_factor > LARGEST_POWER:
        return False
    return not is_scaled or rounder.smallest >= 4 * SMALLEST_NORMAL


def _not_below(number: float, dtype: torch.dtype) -> float:
    """The smallest number of that dtype that is not below `number`."""
    nearest = torch.tensor(number, dtype=dtype, device="cpu")
    if nearest.item() < number:
        nearest = nearest.nextafter(torch.tensor(torch.inf, dtype=dtype, device="cpu"))
    return nearest.item()
