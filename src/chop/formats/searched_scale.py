"""Searched scales: a grid search per group for the least error of the layer's output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.formats.bfloat16 import BITS, from_bits, to_bits
from chop.formats.chunks import chunks
from chop.formats.ordered_sum import sum_in_halves
from chop.formats.packing import unpack_bits
from chop.formats.scaling import EPSILON, TINY, Scales, Scaling
from chop.formats.statistic import LARGEST

MEAN_SHARE = 0.5
"""Squared mean of an input, relative to its variance, that the search for 2 bits assumes. A normal
input after ReLU has 0.47.
"""
STEPS = 16
"""Candidates per factor of 2 between the smallest and the largest divisor."""


@dataclass(frozen=True)
class SearchedScale(Scaling):
    """Bfloat16 scale s, of either sign, that minimizes the group's sum of e^2, e = s k - x.

    For 2 bits it minimizes sum(e^2) + (sum e)^2 / 2, the expected squared error of the group's
    product with inputs of variance 1 and squared mean 1/2. Half of the larger values saturate at
    this width, all of one sign, so their errors add up if the inputs have a nonzero mean.

    The candidates are s = -x_max / c, where x_max is the value of largest magnitude. Their sign
    makes the code of x_max negative, because the lowest code is -n and the highest one n - 1. c
    runs from n/2 to 3n/2 in steps of n/16, or from n/2 to n in steps of 1 if n exceeds 16. Integers
    c recover the scale of values that are rounded already. The first of equal candidates is taken.
    A group of zeros gets s = 2^-23. Infinities and NaN are ignored.

    A bfloat16 times an 8-bit integer is a float32 number, so products are not rounded.

    Attributes:
        lowest_code: -n.
        width: bits of a scale.
    """

    lowest_code: int
    width: int = BITS
    statistic = LARGEST
    follows_values = True
    finds_any = True  # some integer among the divisors, the largest |k| or an even multiple of it

    @property
    def divisors(self) -> tuple[float, ...]:
        """All values of c."""
        n = -self.lowest_code
        step, end = (n / STEPS, 3 * n / 2) if n <= STEPS else (1.0, n)
        count = round((end - n / 2) / step)
        return tuple(n / 2 + i * step for i in range(count + 1))

    def measure(self, groups: Tensor, counted: Tensor | None = None) -> Scales:
        """Returns the scales of groups; `counted` is ignored, as the elements have no threshold."""
        rows = groups.detach().reshape(-1, groups.size(-1)).double()
        best = torch.ops.chop.searched_scales(rows, self.lowest_code)
        return self.scales(best.view(*groups.shape[:-1], 1))

    def search(self, rows: Tensor) -> Tensor:
        """Returns the best scale of each group: the readable reference.

        Args:
            rows: float64 (groups, group size).
        Returns: float64 (groups, 1).
        """
        parts = [self._search(part.t()).t() for part in chunks(rows, rows.size(-1))]
        return torch.cat(parts) if parts else rows[:, :1]

    def _search(self, columns: Tensor) -> Tensor:
        """Returns the best scale of each column, float64 (1, groups)."""
        x = columns.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).contiguous()
        x_max = x.gather(0, x.abs().argmax(0, keepdim=True))
        # Squares of float64 numbers can be infinite. Then the first candidate is taken.
        best = self.representable(-x_max / self.divisors[0])
        least = torch.full_like(x_max, torch.inf)
        error, is_two_bits = torch.empty_like(x), self.lowest_code == -2
        for divisor in self.divisors:
            scale = self.representable(-x_max / divisor)
            torch.mul(x, 1 / scale, out=error).round_()
            error.clamp_(self.lowest_code, -self.lowest_code - 1).mul_(scale).sub_(x)
            added = sum_in_halves(error.clone()).square_() * MEAN_SHARE if is_two_bits else 0.0
            total = sum_in_halves(error.square_()) + added
            is_better = total < least
            best = torch.where(is_better, scale, best)
            least = torch.where(is_better, total, least)
        return best

    def representable(self, scales: Tensor, tensor_scale: Tensor | None = None) -> Tensor:
        """Returns the nearest nonzero bfloat16 scales with finite products."""
        smallest = torch.where(scales == 0, EPSILON, TINY)
        magnitude = torch.maximum(scales.abs(), smallest)
        limit = torch.finfo(torch.bfloat16).max / -self.lowest_code
        return magnitude.clamp(max=limit).bfloat16().double().copysign(scales + 0.0)

    def scales(self, statistics: Tensor, non_finite: Tensor | None = None) -> Scales:
        """Wraps values that are scales already, with their bfloat16 bits as codes."""
        return Scales(statistics, to_bits(statistics))

    def restore(self, packed: Tensor, count: int, tensor_scale: Tensor | None) -> Tensor:
        """Returns the numbers of the codes."""
        return from_bits(unpack_bits(packed, self.width, count).view(-1, 1))


OPERATORS = torch.library.Library("chop", "FRAGMENT")
OPERATORS.define(
    "searched_scales(Tensor rows, int lowest_code) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)


def _by_reference(rows: Tensor, lowest_code: int) -> Tensor:
    return SearchedScale(lowest_code).search(rows)


def _one_per_row(rows: Tensor, lowest_code: int) -> Tensor:
    return rows.new_empty(rows.size(0), 1)


OPERATORS.impl("searched_scales", _by_reference, "CompositeExplicitAutograd")
torch.library.register_fake("chop::searched_scales", _one_per_row, lib=OPERATORS)
