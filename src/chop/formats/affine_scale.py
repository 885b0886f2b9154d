"""Affine scales: a scale and a zero point per group, by least squares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from chop.formats.bfloat16 import BITS, from_bits, to_bits
from chop.formats.chunks import chunks
from chop.formats.packing import unpack_bits
from chop.formats.scaling import EPSILON, TINY, Scales, Scaling
from chop.formats.statistic import LARGEST

CLIPPED = (0.85, 0.7)
"""Shares of the range of a group from which fits start, beside all of it."""
FITS = 5
"""Least-squares fits from each start."""
FLOAT32_END = 128
"""Exponent of the power of two that float32 ends below."""


class _Grid(NamedTuple):
    """Scales and zero points, float64 (rows, 1) each."""

    scale: Tensor
    zero: Tensor


@dataclass(frozen=True)
class AffineScale(Scaling):
    """The bfloat16 s and the zero point z of s (k - z) with the least squared error that is found.

    Codes k and the line through (k, x) are fitted in turns, from several starts. Only grids count
    on which the lowest of a group's values and 0 has the code 0, and the highest the last code or
    the one before: where these values stay as they round, s and z are found again in what was
    rounded.
    Where no grid is such, in groups of zeros or near the end of float32, s is 2^-23 and z is 0.
    Infinities and NaN do not count; what a short group lacks counts as zeros.

    A bfloat16 times a number of 9 bits is a float32 number, so that no product is rounded.

    Attributes:
        element_width: bits of k.
        width: bits of s and z together: those of s are the low ones.
        zero_width: bits of z, in units of 2^(element_width - 8).

    Source: fitting codes and levels in turns: Lloyd 1982, IEEE Transactions on Information Theory
    28(2), the method named after him; here levels lie on a line, which is fitted by regression.
    """

    element_width: int
    zero_width = 8
    width = BITS + zero_width
    statistic = LARGEST
    follows_values = True

    @property
    def last_code(self) -> int:
        """The largest k."""
        codes: int = 2**self.element_width
        return codes - 1

    @property
    def _zero_steps(self) -> float:
        """Zero points between one code and the next."""
        return 2.0 ** (self.zero_width - self.element_width)

    def anchors(self, groups: Tensor) -> Tensor:
        """True for the lowest of a group's values and 0, and for the highest."""
        lowest, highest = groups.aminmax(dim=-1, keepdim=True)
        return (groups == lowest.clamp(max=0)) | (groups == highest.clamp(min=0))

    def measure(self, groups: Tensor, counted: Tensor | None = None) -> Scales:
        """The grids of groups; elements with zero points have no threshold, so that all count."""
        rows = groups.detach().reshape(-1, groups.size(-1)).double()
        found = [torch.cat(self._fit(part), -1) for part in chunks(rows, rows.size(-1))]
        grids = torch.cat(found) if found else rows.new_empty(0, 2)
        return self._stored(*grids.view(*groups.shape[:-1], 2).split(1, -1))

    def _fit(self, rows: Tensor) -> _Grid:
        # In one order in memory, sums have one order.
        x = rows.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).contiguous()
        low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
        has_zero = (x == 0).any(-1, keepdim=True)
        best = _Grid(torch.full_like(low, EPSILON), torch.zeros_like(low))
        least = torch.full_like(low, torch.inf)
        for start in self._starts(low, high):
            wanted = start
            for step in range(FITS + 1):
                grid = self._representable(wanted, low, high, has_zero)
                codes = self._codes(x, grid)
                error = codes.sub(grid.zero).mul_(grid.scale).sub_(x).square_()
                total = error.sum(-1, keepdim=True)
                is_better = (total < least) & self._spans(grid, low, high)
                best = _where(is_better, grid, best)
                least = torch.where(is_better, total, least)
                if step < FITS:
                    wanted = _least_squares(x, codes, grid)
        return best

    def _starts(self, low: Tensor, high: Tensor) -> Iterator[_Grid]:
        """Grids before they are rounded.

        The first two are found again in values that were rounded by them. The third one lies across
        the range, both ends beyond it by the same part of a step: it always counts, as far as
        float32 goes. The others clip the ends.
        """
        whole = (high - low) / self.last_code
        zero = -low / whole
        yield _Grid(whole, zero)
        shorter = (high - low) / (self.last_code - 1)
        yield _Grid(shorter, -low / shorter)
        below = _rounded_down(whole)
        yield _Grid(below, (self.last_code - (high + low) / below) / 2)
        for share in CLIPPED:
            yield _Grid(whole * share, zero)

    def _representable(self, wanted: _Grid, low: Tensor, high: Tensor, has_zero: Tensor) -> _Grid:
        """The nearest bfloat16 above zero whose products are finite, and the nearest zero point."""
        largest = 2.0 ** (FLOAT32_END - self.element_width)
        scale = wanted.scale.nan_to_num(nan=0.0).clamp(TINY, largest).bfloat16().double()
        # Where no value is above 0, or none below, a code at the end of the range stands for 0.
        lowest = torch.where(high == 0, self.last_code - 1, 0)
        zero = torch.maximum(wanted.zero.nan_to_num(nan=0.0), lowest).clamp(max=self.last_code)
        steps = torch.where(has_zero | (high == 0), 1.0, self._zero_steps)
        zero = (zero * steps).round_().div_(steps)
        return _Grid(scale, zero.masked_fill(low == 0, 0.0))

    def _codes(self, x: Tensor, grid: _Grid) -> Tensor:
        return (x / grid.scale).add_(grid.zero).round_().clamp_(0, self.last_code)

    def _spans(self, grid: _Grid, low: Tensor, high: Tensor) -> Tensor:
        first, last = self._codes(low, grid), self._codes(high, grid)
        return (first == 0) & (last >= self.last_code - 1) & (last >= grid.zero)

    def _stored(self, scale: Tensor, zero: Tensor) -> Scales:
        codes = to_bits(scale) | (zero * self._zero_steps).long() << BITS
        return Scales(scale, codes, zero_points=zero)

    def scales(self, found: Tensor, non_finite: Tensor | None = None) -> Scales:
        """Numbers that are scales already, with zero points of 0."""
        return self._stored(found, torch.zeros_like(found))

    def restore(self, packed: Tensor, count: int, of_tensor: Tensor | None) -> Tensor:
        """s of each code."""
        return from_bits(unpack_bits(packed, self.width, count).long().view(-1, 1))

    def restore_zero_points(self, packed: Tensor, count: int) -> Tensor:
        """z of each code."""
        codes = unpack_bits(packed, self.width, count).long().view(-1, 1)
        return (codes >> BITS).double() / self._zero_steps


def _rounded_down(scale: Tensor) -> Tensor:
    """The largest bfloat16 that is not above a number of at least 0."""
    nearest = scale.bfloat16()
    below = (nearest.view(torch.int16) - 1).clamp(min=0).view(torch.bfloat16)
    return torch.where(nearest.double() > scale, below, nearest).double()


def _where(chosen: Tensor, grid: _Grid, other: _Grid) -> _Grid:
    return _Grid(*(torch.where(chosen, a, b) for a, b in zip(grid, other, strict=True)))


def _least_squares(x: Tensor, codes: Tensor, before: _Grid) -> _Grid:
    """The line through (k, x) with the least squared distance; `before` where k does not vary."""
    mean_k, mean_x = codes.mean(-1, keepdim=True), x.mean(-1, keepdim=True)
    k = codes - mean_k
    variance, covariance = (k * k).sum(-1, keepdim=True), (k * x).sum(-1, keepdim=True)
    scale = torch.where(covariance > 0, covariance / variance, before.scale)
    return _Grid(scale, mean_k - mean_x / scale)
