"""Column rounding: a matrix is rounded column by column, each error made up for by the next ones.

Source: Frantar et al. 2022, arXiv:2210.17323, section 3.3 and algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats import NumberFormat

ROWS = 64
"""Of a Hessian that are copied at once."""
DAMPINGS = 16
"""How often the damping grows before a Hessian is given up; it has what is no number then."""


class _RoundingGrid(NamedTuple):
    """A format's rounding of a weight, taken apart: scale (round(w / scale + zero) - zero).

    Attributes:
        round: rounds single values.
        scale: of each weight, float64.
        zero: of each weight, its zero point; zeros where the format has none.
        fixed: the rounded values of the weights that must keep them for scales to stay; NaN for
            the others.
    """

    round: Callable[[Tensor], Tensor]
    scale: Tensor
    zero: Tensor
    fixed: Tensor

    def each(self, change: Callable[[Tensor], Tensor]) -> _RoundingGrid:
        """With the three tensors changed alike."""
        return _RoundingGrid(self.round, *(change(x) for x in self[1:]))

    def rounded(self, values: Tensor, column: int) -> Tensor:
        """Values in the place of a column of the weight, on its grid; columns are the first index.

        Args:
            values: float64 (outputs,).
            column: which.
        """
        scale, zero, fixed = (x[column] for x in self[1:])
        found = (self.round(values / scale + zero) - zero) * scale
        return torch.where(fixed.isnan(), found, fixed)


@dataclass(frozen=True)
class Solver:
    """Hessian-based rounding of one matrix.

    Attributes:
        damp_percent: the share of the mean of the Hessian's diagonal that is added to it; ten times
            as much until the sum is positive definite in floating point.
        block_size: columns of a block.
        actorder: rounds the columns with the largest inputs first.
    """

    damp_percent: float = 0.01
    block_size: int = 128
    actorder: bool = False

    def solve(self, weight: Tensor, hessian: Tensor, grid: _RoundingGrid) -> Tensor:
        """Rounds a matrix; see `_ColumnRounder`.

        Args:
            weight: float64 (outputs, D).
            hessian: H, float32 or float64 (D, D), before damping.
            grid: (outputs, D), what is rounded to.
        Returns: the rounded matrix, float64.
        """
        return self.rounder(hessian)(weight, grid)

    def rounder(self, hessian: Tensor) -> _ColumnRounder:
        """What rounds any rows of a matrix whose inputs have this Hessian.

        It takes a float64 matrix of the Hessian's size, and nothing beside it.
        """
        order = torch.arange(len(hessian), device=hessian.device)
        if self.actorder:
            order = hessian.diagonal().argsort(descending=True)
        order = order.flip(0)
        factor = _factor(hessian, order, self.damp_percent)
        return _ColumnRounder(factor, order, self.block_size)


@dataclass(frozen=True, eq=False)
class _ColumnRounder:
    """Rounds a matrix column by column; the columns that follow make up for each error.

    With L the lower Cholesky factor of H, columns in the order of L from the last to the first, and
    e_i = w_i - q_i, column j is rounded at w_j + sum_{i > j} e_i L_ij / L_jj. This is the same as
    subtracting errors by the factor of H^-1 from the columns that follow, and inverts nothing.

    Attributes:
        factor: float64 (D, D), L^T with each row divided by its diagonal.
        order: (D,) the column at each place of the factor.
        block_size: columns whose corrections by earlier ones are computed at once.

    Source: Chee et al. 2023, arXiv:2307.13304, eq. 2 and theorem 6.
    """

    factor: Tensor
    order: Tensor
    block_size: int

    def __call__(self, weight: Tensor, grid: _RoundingGrid) -> Tensor:
        """Rounds rows of the matrix, float64 (rows, D), to a grid of the same shape."""
        # Columns as rows, which lie together in memory.
        rounded = weight[:, self.order].T.contiguous()
        grid = grid.each(lambda x: x[:, self.order].T.contiguous())
        errors = torch.zeros_like(rounded)
        for stop in range(len(rounded), 0, -self.block_size):
            start = max(stop - self.block_size, 0)
            wanted = rounded[start:stop] + self.factor[start:stop, stop:] @ errors[stop:]
            for j in range(stop - 1, start - 1, -1):
                after = slice(j + 1, stop)
                values = torch.addmv(wanted[j - start], errors[after].T, self.factor[j, after])
                found = grid.rounded(values, j)
                errors[j] = rounded[j] - found
                rounded[j] = found
        return rounded[self.order.argsort()].T.contiguous()


def _factor(hessian: Tensor, order: Tensor, damp_percent: float) -> Tensor:
    """L^T of the damped Hessian in another order, each row divided by its diagonal, float64."""
    mean = hessian.diagonal().double().mean()
    # Without any input all roundings are as good: the identity rounds each weight by itself.
    damp = damp_percent * mean if mean > 0 else torch.ones_like(mean)
    factor = hessian.new_empty(hessian.shape, dtype=torch.float64)
    for _ in range(DAMPINGS):
        for rows, places in zip(factor.split(ROWS), order.split(ROWS), strict=True):
            rows.copy_(hessian[places][:, order])
        factor.diagonal().add_(damp)
        # The transpose lies in memory as LAPACK has matrices: it works there, without a copy.
        _, info = torch.linalg.cholesky_ex(factor.mT, out=(factor.mT, order.new_empty(0).int()))
        if not info:
            return factor.div_(factor.diagonal()[:, None].clone())
        damp = 10 * damp
    raise ConfigError(f"gptq: the Hessian of {len(hessian)} inputs is not positive definite.")


def rounding_grid(number_format: NumberFormat, weight: Tensor) -> _RoundingGrid:
    """The grid of a weight, of its shape. A format without shared scales has scale 1.

    The weights that scales follow, the largest of a group or the ends of its range, must keep their
    rounded values for scales to stay.

    Args:
        number_format: the weight's.
        weight: float64, any shape.
    """
    ones, zeros = torch.ones_like(weight), torch.zeros_like(weight)
    free = torch.full_like(weight, torch.nan)
    layout = number_format.layout()
    if layout is None or layout.scaling is None or layout.levels is not None:
        return _RoundingGrid(number_format.round, ones, zeros, free)
    if layout.element.threshold is not None:
        return _RoundingGrid(number_format.round, ones, zeros, free)
    groups = layout.split(weight)
    found = layout.scaling.measure(groups)
    scale, zero, is_anchor = (
        layout.groups.join(x.expand_as(groups), weight.shape)
        for x in (
            found.values.masked_fill(found.values == 0, 1),
            torch.zeros_like(found.values) if found.zero_points is None else found.zero_points,
            layout.scaling.anchors(groups),
        )
    )
    rounded = (layout.element.round(weight / scale + zero) - zero) * scale
    fixed = torch.where(is_anchor, rounded, free)
    return _RoundingGrid(layout.element.round, scale, zero, fixed)
