"""Requantization of exact results to the codes of a reader."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor, nn

from chop.nn.integer.base import MAX_BITS, IntegerOperator, check_loadable, check_width
from chop.nn.integer.edge import Edge, Grid, GridRounding, bit_width, shift_between
from chop.nn.integer.rounding import Rounding, round_shift, saturate, shift_and_saturate

MULTIPLIER_BITS = 16
LOADABLE_BITS = 17
"""Bits of a loadable multiplier, so that a scale may become twice as large."""
SPLIT_BITS = 16
SPLIT = 1 << SPLIT_BITS


class Requantize(IntegerOperator):
    """Rounds codes of an edge to the grid of a reader: y = sat(rhe(v m_c / 2^s)).

    The shift s is common to all channels. If every step is the grid's times a power of two, there
    is no multiplier, or (with steps per channel) one that is a power of two; both are exact.
    Otherwise m_c has the top 16 bits of the channel's ratio of steps; the largest channel uses all
    16 of them. If the steps are scales of loadable weights, multipliers and thresholds are
    loadable, and multipliers may have 17 bits.

    A divisor n that is not a power of two is a part of the multiplier. Without a multiplier it is a
    division, whose remainder becomes a sticky bit below the half, so that v/n is rounded once, as a
    rational number.

    Width: v m_c has the bits of the edge and those of m_c. If they exceed int64, the lower 16 bits
    of v are multiplied separately, and the dropped bits of their product become a sticky bit.

    Args:
        edge: edge of the input.
        grid: grid of the result.
        like: requantizer of a circuit whose shift is taken, if multipliers are loadable; None to
            choose it.

    Source: integer requantization, Jacob et al. 2018, arXiv:1712.05877, section 2.2; half to even
    as in `round_shift`.
    """

    multiplier: Tensor
    threshold: Tensor
    shift: int

    def __init__(self, edge: Edge, grid: Grid, like: nn.Module | None = None) -> None:
        super().__init__(grid.edge)
        self.low, self.high = grid.low, grid.high
        self.rounding: GridRounding = grid.rounding
        self.is_loadable = edge.is_trained and grid.rounding != "sign"
        if self.is_loadable:
            given = like.shift if isinstance(like, Requantize) else None
            multipliers, self.shift = _multipliers(edge, Fraction(grid.step) * edge.divisor, given)
            self.divisor, bound = 1, (1 << LOADABLE_BITS) - 1
            if grid.rounding != "threshold":
                self.circuit_numbers = "multiplier"
                check_loadable(type(self).__name__, "scale", torch.tensor(multipliers), bound)
        else:
            multipliers, self.shift, self.divisor = _ratio(edge, grid.step)
            bound = max(multipliers)
        self.has_multiplier = self.is_loadable or any(m != 1 for m in multipliers)
        largest = bound << (max(-self.shift, 0) + 2 if self.divisor > 1 else 0)
        product = min(edge.low, -1) * largest, max(edge.high, 1) * largest
        is_split = bound <= SPLIT and self.shift > SPLIT_BITS and self.divisor == 1
        self.splits = is_split and bit_width(*product) > MAX_BITS
        if not self.splits:
            check_width("Requantize", *product)
        channel_multipliers = torch.tensor(multipliers).view(edge.step.shape)
        self.register_buffer("multiplier", edge.by_channel(channel_multipliers))
        self.register_buffer("threshold", edge.by_channel(_thresholds(edge, grid)))
        if self.is_loadable:
            return
        ends = torch.tensor([edge.low, edge.high]).view(2, *[1] * self.multiplier.dim())
        ends = self.forward(ends)
        self.out_low, self.out_high = int(ends.min()), int(ends.max())

    def forward(self, codes: Tensor) -> Tensor:
        """Returns the grid's codes, int64, in the shape of `codes`."""
        if self.rounding == "sign":
            return torch.where(codes >= 0, self.high, self.low)
        if self.rounding == "threshold":
            return codes.sign() * (codes.abs() > self.threshold)
        if self.splits:
            v, shift = self._split_product(codes), self.shift - SPLIT_BITS + 1
            return shift_and_saturate(v, shift, self.low, self.high, self.rounding)
        v = codes * self.multiplier if self.has_multiplier else codes
        if self.divisor == 1:
            return shift_and_saturate(v, self.shift, self.low, self.high, self.rounding)
        return saturate(self._divided(v, self.rounding), self.low, self.high)

    def _split_product(self, codes: Tensor) -> Tensor:
        """Returns v m / 2^15 from the two halves of v; the last bit is sticky."""
        lower = (codes & SPLIT - 1) * self.multiplier
        upper = (codes >> SPLIT_BITS) * self.multiplier + (lower >> SPLIT_BITS)
        return upper << 1 | (lower & SPLIT - 1 != 0).long()

    def _divided(self, v: Tensor, rounding: Rounding) -> Tensor:
        """Returns v / (n 2^s), rounded once; two extra bits suffice, the second of them sticky."""
        # The extra bits make the last one sticky, so that later rounding sees the remainder.
        v = v << max(-self.shift, 0) + 1
        quotient = torch.div(v, self.divisor, rounding_mode="floor")
        sticky = (quotient * self.divisor != v).long()
        return round_shift(quotient << 1 | sticky, max(self.shift, 0) + 2, rounding)


def _thresholds(edge: Edge, grid: Grid) -> Tensor:
    """Returns the largest magnitudes of codes that become 0: int64, () or (n,)."""
    limits = [math.floor(Fraction(grid.threshold) * edge.divisor / Fraction(s)) for s in edge.steps]
    return torch.tensor([min(limit, 2**62) for limit in limits]).view(edge.step.shape)


def _ratio(edge: Edge, step: float) -> tuple[list[int], int, int]:
    """Returns multipliers m, a shift s and a divisor n: steps over `step` are m / (2^s n)."""
    # The power of two in the divisor becomes a part of the shift.
    twos = edge.divisor & -edge.divisor
    divisor, more = edge.divisor // twos, twos.bit_length() - 1
    exponents = [shift_between(own, step) for own in edge.steps]
    shifts = [shift for shift in exponents if shift is not None]
    if len(shifts) == len(exponents):
        # Exact: all steps differ by powers of two, so multipliers are shifts.
        least = min(shifts)
        return [1 << shift - least for shift in shifts], more - least, divisor
    multipliers, shift = _multipliers(edge, Fraction(step) * divisor)
    return multipliers, shift + more, 1


def _multipliers(edge: Edge, step: Fraction, given: int | None = None) -> tuple[list[int], int]:
    """Returns rounded multipliers m and a shift s: the edge's steps over `step` are m / 2^s."""
    ratios = [Fraction(own) / step for own in edge.steps]
    shift = MULTIPLIER_BITS - 1 - _floor_log2(max(ratios)) if given is None else given
    multipliers = [round(ratio * Fraction(2) ** shift) for ratio in ratios]
    # Rounding up can need one bit more than the multiplier has.
    if given is None and max(multipliers) == 1 << MULTIPLIER_BITS:
        return _multipliers(edge, step, shift - 1)
    return multipliers, shift


def _floor_log2(x: Fraction) -> int:
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= x else exponent - 1
