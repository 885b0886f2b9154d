"""Fitted minifloat scales: the least squared error among scales near the measured one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chop.formats.chunks import chunks
from chop.formats.elements import Element
from chop.formats.ordered_sum import sum_in_halves
from chop.formats.scaling import ScaledFloatScale, Scales

TARGETS = (4.0, 4.5, 5.0, 5.5, 6.5, 7.0, 7.5, 8.0)
"""Numbers that a group's largest magnitude is mapped to, besides `largest`. Larger ones clip it."""


@dataclass(frozen=True, kw_only=True)
class FittedFloatScale(ScaledFloatScale):
    """Minifloat scale with the least squared error of its group, times a float32 scale per tensor.

    The candidates are amax/c, in units of the tensor's scale and rounded to the minifloat. c is
    `largest` or one of `TARGETS`. The first of equal candidates is taken. Groups with the largest
    minifloat as their measured scale keep it, so the tensor's scale can be measured again.

    Attributes:
        values: elements that the scales multiply.

    Source: choice of 4 or 6: Cook et al. 2025 (Four Over Six), arXiv:2512.02010, section 3.
    """

    values: Element
    follows_values = True

    def measure(self, groups: Tensor, counted: Tensor | None = None) -> Scales:
        """Returns the scales of groups; `counted` is ignored, as the elements have no threshold."""
        measured = super().measure(groups, counted)
        unit = measured.tensor_scale
        if groups.is_meta or not groups.numel():  # without data there is nothing to fit
            return measured
        assert unit is not None
        size = groups.size(-1)
        rows, firsts = groups.detach().reshape(-1, size).double(), measured.codes.view(-1, 1)
        fitted = torch.cat(
            [
                self._fit(part.t(), first.t(), unit.double()).t()
                for part, first in zip(chunks(rows, size), chunks(firsts, size), strict=True)
            ]
        )
        codes = fitted.view_as(measured.codes)
        return Scales(codes * unit.double(), codes, unit)

    def _fit(self, columns: Tensor, first: Tensor, unit: Tensor) -> Tensor:
        """Returns the best minifloat of each column, (1, groups)."""
        x = columns.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).contiguous()
        amax = x.abs().amax(0, keepdim=True)
        best, least = first, torch.full_like(first, torch.inf)
        for target in (self.largest, *TARGETS):
            codes = self.element.round(amax / target / unit)
            scale = codes * unit
            rounded = self.values.round(x / scale.masked_fill(scale == 0, 1.0))
            total = sum_in_halves(rounded.mul_(scale).sub_(x).square_())
            best = torch.where(total < least, codes, best)
            least = torch.minimum(total, least)
        stays = first.isnan() | (first == self.element.largest)
        return torch.where(stays, first, best)
