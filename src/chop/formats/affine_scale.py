"""Affine scales: a scale and a zero point per group, fitted by least squares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from chop.formats.bfloat16 import BITS, from_bits, to_bits
from chop.formats.chunks import CHUNK, chunks
from chop.formats.packing import unpack_bits
from chop.formats.scaling import EPSILON, TINY, Scales, Scaling
from chop.formats.statistic import LARGEST

CLIPPED = (0.85, 0.7)
"""Fractions of a group's range from which fits start, in addition to the whole range."""
FITS = 5
"""Least-squares fits per clipped start."""
FEW = 4
"""Largest width of k for which every allowed number of steps in a range is tried."""
FLOAT32_END = 128
"""Exponent of the smallest power of two above the float32 range."""


class _Grid(NamedTuple):
    """Scales and zero points, float64 (rows, 1) each."""

    scale: Tensor
    zero: Tensor


class _Group(NamedTuple):
    """Values of groups, and the statistics that grids depend on.

    Attributes:
        x: float64 (rows, elements), 0 for excluded elements.
        counts: same shape, 1 for included and 0 for excluded elements; None includes all.
        low: (rows, 1), minimum of the values and 0.
        high: (rows, 1), maximum of the values and 0.
        has_zero: (rows, 1), True if a value is 0.
    """

    x: Tensor
    counts: Tensor | None
    low: Tensor
    high: Tensor
    has_zero: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> _Group:
        """Returns groups given as rows, excluding NaN and infinities."""
        finite = rows.isfinite()
        # In one order in memory, sums have one order.
        x = rows.masked_fill(~finite, 0.0).contiguous()
        low, high = x.aminmax(dim=-1, keepdim=True)
        counts = None if finite.all() else finite.double()
        has_zero = (rows == 0).any(-1, keepdim=True)
        return cls(x, counts, low.clamp(max=0), high.clamp(min=0), has_zero)

    def sum(self, values: Tensor) -> Tensor:
        """Returns the sum of included values, (rows, 1)."""
        return (values if self.counts is None else values * self.counts).sum(-1, keepdim=True)

    def mean(self, values: Tensor) -> Tensor:
        """Returns the mean of included values, (rows, 1)."""
        if self.counts is None:
            return values.mean(-1, keepdim=True)
        return self.sum(values) / self.counts.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class AffineScale(Scaling):
    """Bfloat16 scale s and zero point z of s (k - z), chosen to minimize the squared error.

    Alternating fits start from several grids. Each fit rounds the values to codes k and then
    computes s and z by regression. The minimum of a group's values and 0 has the code 0, and the
    maximum one of `ends`, so s and z can be computed again from the rounded values. Groups without
    such a grid (zeros, or values near the ends of float32) get s = 2^-23 and z = 0. Infinities, NaN
    and padding are ignored.

    A code stores s in its low 16 bits and z in the 8 above, as a multiple of 2^(element_width - 8).
    A bfloat16 times a 9-bit integer is a float32 number, so products are not rounded.

    Attributes:
        element_width: bits of k.

    Source: alternating fits of codes and levels: Lloyd 1982, IEEE Transactions on Information
    Theory 28(2). Here the levels lie on a line.
    """

    element_width: int
    zero_width = 8
    width = BITS + zero_width
    statistic = LARGEST
    follows_values = True
    chunk = 4 * CHUNK  # many small steps on one number of each group

    @property
    def last_code(self) -> int:
        """Largest k."""
        codes: int = 2**self.element_width
        return codes - 1

    @property
    def ends(self) -> tuple[int, ...]:
        """Numbers of steps that a group's range may have."""
        last, half = self.last_code, (self.last_code + 1) // 2
        return tuple(range(half, last + 1)) if self.element_width <= FEW else (half, last - 1, last)

    @property
    def _zero_steps(self) -> float:
        """Zero points per code."""
        return 2.0 ** (self.zero_width - self.element_width)

    def anchors(self, groups: Tensor) -> Tensor:
        """Returns a mask of the minimum and maximum of each group's values and 0."""
        lowest, highest = groups.nan_to_num(nan=0.0).aminmax(dim=-1, keepdim=True)
        return (groups == lowest.clamp(max=0)) | (groups == highest.clamp(min=0))

    def measure(self, groups: Tensor, counted: Tensor | None = None) -> Scales:
        """Returns the scales and zero points of groups, ignoring NaN.

        Args:
            groups: float64, (..., groups, group size).
            counted: None: elements with zero points have no threshold.
        """
        rows = groups.detach().reshape(-1, groups.size(-1)).double()
        if rows.is_meta:  # without data there is nothing to fit
            return self.scales(groups[..., :1].double())
        grids_of_parts = [
            torch.cat(self._fit(part), -1) for part in chunks(rows, rows.size(-1), self.chunk)
        ]
        grids = torch.cat(grids_of_parts) if grids_of_parts else rows.new_empty(0, 2)
        return self._stored(*grids.view(*groups.shape[:-1], 2).split(1, -1))

    def _fit(self, rows: Tensor) -> _Grid:
        group = _Group.of(rows)
        best = _Grid(torch.full_like(group.low, EPSILON), torch.zeros_like(group.low))
        least = torch.full_like(group.low, torch.inf)
        for start, fits in self._starts(group):
            grid = start
            # Each fit lowers the error of its codes, but new codes may leave the allowed grids:
            # every intermediate grid is a candidate.
            for step in range(fits + 1):
                codes = self._codes(group.x, grid)
                error = codes.sub(grid.zero).mul_(grid.scale).sub_(group.x).square_()
                total = group.sum(error)
                is_better = (total < least) & self._spans(grid, group)
                best = _where(is_better, grid, best)
                least = torch.where(is_better, total, least)
                if step < fits:
                    grid = self._regression(group, codes, grid)
        return best

    def _starts(self, group: _Group) -> Iterator[tuple[_Grid, int]]:
        """Yields initial grids, and the number of fits for each.

        The grid for each of `ends` reproduces itself from values that it rounded. One grid has a
        step rounded down and covers the range symmetrically, to stay within float32.
        """
        spread, ends = group.high - group.low, self.ends
        for end in reversed(ends):
            scale = spread / end
            fits = FITS if end == self.last_code else 0
            yield self._grid(scale, -group.low / scale, group), fits
        whole = spread / self.last_code
        below = _rounded_down(whole)
        middle = (self.last_code - (group.high + group.low) / below) / 2
        yield self._grid(below, middle, group), 0
        for share in CLIPPED:
            yield self._grid(whole * share, -group.low / whole, group), FITS

    def representable(self, scales: Tensor, tensor_scale: Tensor | None = None) -> Tensor:
        """Returns the nearest positive bfloat16 scales with finite products."""
        largest = 2.0 ** (FLOAT32_END - self.element_width)
        return scales.nan_to_num(nan=0.0).clamp(TINY, largest).bfloat16().double()

    def _grid(self, scale: Tensor, zero: Tensor, group: _Group) -> _Grid:
        return _Grid(self.representable(scale), self._zero_point(zero, group))

    def _zero_point(self, zero: Tensor, group: _Group) -> Tensor:
        """Returns the nearest zero point; an end if all values are on one side of 0."""
        lowest = torch.where(group.high == 0, self.ends[0], 0)
        zero = torch.maximum(zero.nan_to_num(nan=0.0), lowest).clamp(max=self.last_code)
        steps = torch.where(group.has_zero | (group.high == 0), 1.0, self._zero_steps)
        return (zero * steps).round_().div_(steps).masked_fill(group.low == 0, 0.0)

    def _codes(self, x: Tensor, grid: _Grid) -> Tensor:
        return (x / grid.scale).add_(grid.zero).round_().clamp_(0, self.last_code)

    def _spans(self, grid: _Grid, group: _Group) -> Tensor:
        first, last = self._codes(group.low, grid), self._codes(group.high, grid)
        # Only such grids are found again from the values that they rounded.
        is_end = torch.isin(last, last.new_tensor(self.ends))
        return (first == 0) & is_end & (last >= grid.zero)

    def _regression(self, group: _Group, codes: Tensor, before: _Grid) -> _Grid:
        """Fits x = s (k - z) by least squares, then again for the rounded zero point."""
        x = group.x
        mean_k, mean_x = group.mean(codes), group.mean(x)
        k = codes - mean_k
        slope = group.sum(k * x) / group.sum(k * k)  # not above zero, or NaN, where k does not vary
        zero = torch.where(slope > 0, mean_k - mean_x / slope, before.zero)
        zero = self._zero_point(zero, group)
        k = codes - zero
        scale = group.sum(k * x) / group.sum(k * k)
        return self._grid(torch.where(scale > 0, scale, before.scale), zero, group)

    def _stored(self, scale: Tensor, zero: Tensor) -> Scales:
        codes = to_bits(scale) | (zero * self._zero_steps).long() << BITS
        return Scales(scale, codes, zero_points=zero)

    def scales(self, statistics: Tensor, non_finite: Tensor | None = None) -> Scales:
        """Wraps values that are scales already, with zero points of 0."""
        return self._stored(statistics, torch.zeros_like(statistics))

    def restore(self, packed: Tensor, count: int, tensor_scale: Tensor | None) -> Tensor:
        """Returns s of each code."""
        return from_bits(unpack_bits(packed, self.width, count).long().view(-1, 1))

    def restore_zero_points(self, packed: Tensor, count: int) -> Tensor:
        """Returns z of each code."""
        codes = unpack_bits(packed, self.width, count).long().view(-1, 1)
        return (codes >> BITS).double() / self._zero_steps


def _rounded_down(scale: Tensor) -> Tensor:
    """Rounds non-negative numbers down to bfloat16."""
    nearest = scale.bfloat16()
    # Bits of non-negative floats sort like the numbers: one less is the number below.
    below = (nearest.view(torch.int16) - 1).clamp(min=0).view(torch.bfloat16)
    return torch.where(nearest.double() > scale, below, nearest).double()


def _where(chosen: Tensor, grid: _Grid, other: _Grid) -> _Grid:
    return _Grid(*(torch.where(chosen, a, b) for a, b in zip(grid, other, strict=True)))
