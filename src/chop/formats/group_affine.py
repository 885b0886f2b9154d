"""`group_affine`: integers with a scale and a zero point per group, fitted by least squares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from chop.formats.chunks import chunks
from chop.formats.elements import Fixed
from chop.formats.groups import Blocks
from chop.formats.packing import unpack_bits
from chop.formats.scaled import ScaledFormat
from chop.formats.scaling import EPSILON, TINY, Scales, Scaling
from chop.formats.statistic import LARGEST

SCALE_WIDTH, ZERO_WIDTH = 16, 8
CLIPPED = (0.85, 0.7)
"""Shares of the range of a group from which fits start, beside all of it."""
FITS = 5
"""Least-squares fits from each start."""


@dataclass(frozen=True)
class GroupAffine(ScaledFormat):
    """Unsigned integers with a bfloat16 scale and a zero point, for a group of a row.

    Values: s (k - z), 0 <= k < 2^width; s > 0 is a bfloat16, z in [0, 2^width - 1] a multiple of
    2^(width-8), an integer in groups that have a value of zero, so that zeros stay. s and z have
    the least sum of squared errors in the group among several fits, each to the codes k that the
    one before gave; the first ones cover the values and 0, or 85 % or 70 % of them. s is 2^-23 in
    a group of zeros. It takes width + 24/group_size bits, and is meant for weights: fitting takes
    time.
    Rounding: of x/s + z to nearest, ties to even. Saturation: what the fit leaves out, and
    infinities. Special values: NaN stays NaN, and is the lowest value when stored.

    Attributes:
        width: bits per element, 2 to 8.
        group_size: elements of a group along the last axis; the last one of a row may be shorter.

    Example:
        >>> import torch
        >>> GroupAffine(2, group_size=4).round(torch.tensor([-1.0, 0.9, 3.1, 5.0]))
        tensor([-1.,  1.,  3.,  5.])

    Source: affine quantization with zero points: Jacob et al. 2017, arXiv:1712.05877, section 2.1,
    equation 1. Codes and grid fitted in turns: Lloyd 1982, IEEE Transactions on Information Theory
    28(2), section V, for levels at equal distances.
    """

    name: ClassVar[str] = "group_affine"
    search_space: ClassVar[dict[str, Sequence[Any]]] = {
        "width": (2, 3, 4),
        "group_size": (32, 64, 128),
    }
    ranges: ClassVar[dict[str, range]] = {"width": range(2, 9), "group_size": range(1, 2**20)}

    width: int = 4
    group_size: int = 64

    @property
    def element(self) -> Fixed:
        """Integers from 0 on."""
        return Fixed(self.width, 0, "unsigned")

    @property
    def groups(self) -> Blocks:
        """Groups along the last axis."""
        return Blocks((self.group_size,))

    @property
    def scaling(self) -> AffineScale:
        """A bfloat16 and a zero point for each group."""
        return AffineScale(self.width)


class _Grid(NamedTuple):
    """Scales and zero points, float64 (rows, 1) each."""

    scale: Tensor
    zero: Tensor


@dataclass(frozen=True)
class AffineScale(Scaling):
    """The bfloat16 s and the zero point z of s (k - z) with the least squared error that is found.

    Only grids count on which the lowest of a group's values and 0 has the code 0, and the highest
    the last code or the one before: where these values are left as they round, s and z are found
    again in what was rounded. Infinities and NaN do not count.

    Attributes:
        element_width: bits of k.
        width: bits of s and z together: those of s are the low ones.
        zero_width: bits of z, in units of 2^(element_width - 8).
    """

    element_width: int
    width: int = SCALE_WIDTH + ZERO_WIDTH
    zero_width: int = ZERO_WIDTH
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
        """True for the lowest values of groups, and for the highest."""
        lowest, highest = groups.aminmax(dim=-1, keepdim=True)
        return (groups == lowest) | (groups == highest)

    def measure(self, groups: Tensor, counted: Tensor | None = None) -> Scales:
        """The grids of groups; all elements count."""
        rows = groups.detach().reshape(-1, groups.size(-1)).double()
        found = [torch.cat(self._fit(part), -1) for part in chunks(rows, rows.size(-1))]
        grids = torch.cat(found) if found else rows.new_empty(0, 2)
        return self.scales(grids.view(*groups.shape[:-1], 2))

    def _fit(self, rows: Tensor) -> _Grid:
        # In one order in memory, sums have one order.
        x = rows.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).contiguous()
        low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
        has_zero = (x == 0).any(-1, keepdim=True)
        best, least = None, torch.full_like(low, torch.inf)
        for start in self._starts(low, high):
            wanted = start
            for step in range(FITS + 1):
                grid = self._representable(wanted, low, high, has_zero)
                codes = self._codes(x, grid)
                error = codes.sub(grid.zero).mul_(grid.scale).sub_(x).square_()
                total = error.sum(-1, keepdim=True)
                is_better = (total < least) & self._spans(grid, low, high)
                best = grid if best is None else _where(is_better, grid, best)
                least = torch.where(is_better, total, least)
                if step < FITS:
                    wanted = _least_squares(x, codes, grid)
        assert best is not None
        return best

    def _starts(self, low: Tensor, high: Tensor) -> Iterator[_Grid]:
        """Grids before they are rounded, the first ones over the whole range.

        Both are found again in values that were rounded by them.
        """
        whole = (high - low) / self.last_code
        zero = -low / whole
        yield _Grid(whole, zero)
        shorter = (high - low) / (self.last_code - 1)
        yield _Grid(shorter, -low / shorter)
        for share in CLIPPED:
            yield _Grid(whole * share, zero)

    def _representable(self, wanted: _Grid, low: Tensor, high: Tensor, has_zero: Tensor) -> _Grid:
        """The nearest bfloat16 above zero, and the nearest zero point."""
        smallest = torch.where(low == high, EPSILON, TINY)
        largest = torch.finfo(torch.bfloat16).max
        scale = torch.maximum(wanted.scale, smallest).clamp(max=largest).bfloat16().double()
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

    def scales(self, found: Tensor, non_finite: Tensor | None = None) -> Scales:
        """Grids that are representable already, with their codes.

        Args:
            found: float64, (..., 2): s and z.
            non_finite: does not count.
        """
        scale, zero = found[..., :1], found[..., 1:]
        low = scale.bfloat16().view(torch.int16).long() & 0xFFFF
        high = (zero * self._zero_steps).long()
        return Scales(scale, low | high << SCALE_WIDTH, zero_points=zero)

    def restore(self, packed: Tensor, count: int, of_tensor: Tensor | None) -> Tensor:
        """s of each code."""
        codes = unpack_bits(packed, self.width, count).long().view(-1, 1) & 0xFFFF
        return (codes - (codes >> 15 << 16)).short().view(torch.bfloat16).double()

    def restore_zero_points(self, packed: Tensor, count: int) -> Tensor:
        """z of each code."""
        codes = unpack_bits(packed, self.width, count).long().view(-1, 1)
        return (codes >> SCALE_WIDTH).double() / self._zero_steps


def _where(chosen: Tensor, grid: _Grid, other: _Grid) -> _Grid:
    return _Grid(*(torch.where(chosen, a, b) for a, b in zip(grid, other, strict=True)))


def _least_squares(x: Tensor, codes: Tensor, before: _Grid) -> _Grid:
    """The line through (k, x) with the least squared distance; `before` where k does not vary."""
    mean_k, mean_x = codes.mean(-1, keepdim=True), x.mean(-1, keepdim=True)
    k = codes - mean_k
    variance, covariance = (k * k).sum(-1, keepdim=True), (k * x).sum(-1, keepdim=True)
    scale = torch.where(covariance > 0, covariance / variance, before.scale)
    return _Grid(scale, mean_k - mean_x / scale)
