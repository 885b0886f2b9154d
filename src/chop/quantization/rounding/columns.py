"""Column rounding: rounds a matrix column by column, with later columns compensating errors.

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
"""Number of Hessian rows copied at once."""
DAMPINGS = 16
"""Number of damping increases before a Hessian is rejected, which then contains NaN."""


class _RoundingGrid(NamedTuple):
    """Rounding grid of a weight: scale (round(w / scale + zero) - zero).

    Attributes:
        round: function that rounds single values.
        scale: scale of each weight, float64.
        zero: zero point of each weight; zeros if the format has none.
        fixed: rounded values that must not change, so that scales stay; NaN for other weights.
    """

    round: Callable[[Tensor], Tensor]
    scale: Tensor
    zero: Tensor
    fixed: Tensor

    def each(self, change: Callable[[Tensor], Tensor]) -> _RoundingGrid:
        """Returns a grid whose three tensors are changed by a function."""
        return _RoundingGrid(self.round, *(change(x) for x in self[1:]))

    def rounded(self, values: Tensor, column: int) -> Tensor:
        """Rounds values of a column of the weight to its grid; columns are the first index.

        Args:
            values: float64 (outputs,).
            column: index of the column.
        """
        scale, zero, fixed = (x[column] for x in self[1:])
        rounded = (self.round(values / scale + zero) - zero) * scale
        return torch.where(fixed.isnan(), rounded, fixed)


@dataclass(frozen=True)
class Solver:
    """Hessian-based rounding of one matrix.

    Attributes:
        damp_percent: damping as a share of the mean of the Hessian's diagonal, multiplied by ten
            until the damped Hessian is positive definite in floating point.
        block_size: number of columns per block.
        actorder: rounds columns with the largest inputs first.
    """

    damp_percent: float = 0.01
    block_size: int = 128
    actorder: bool = False

    def solve(self, weight: Tensor, hessian: Tensor, grid: _RoundingGrid) -> Tensor:
        """Rounds a matrix; see `_ColumnRounder`.

        Args:
            weight: float64 (outputs, D).
            hessian: H, float32 or float64 (D, D), before damping.
            grid: rounding grid, (outputs, D).
        Returns: the rounded matrix, float64.
        """
        return self.rounder(hessian)(weight, grid)

    def rounder(self, hessian: Tensor) -> _ColumnRounder:
        """Returns a rounder for any rows of a matrix whose inputs have this Hessian.

        The memory is one float64 matrix of the Hessian's size.
        """
        order = torch.arange(len(hessian), device=hessian.device)
        if self.actorder:
            order = hessian.diagonal().argsort(descending=True)
        order = order.flip(0)
        factor = _factor(hessian, order, self.damp_percent)
        return _ColumnRounder(factor, order, self.block_size)


@dataclass(frozen=True, eq=False)
class _ColumnRounder:
    """Column-by-column rounding of a matrix with error compensation.

    With L the lower Cholesky factor of H, columns in the order of L from the last to the first, and
    e_i = w_i - q_i, column j is rounded at w_j + sum_{i > j} e_i L_ij / L_jj. This equals
    subtracting errors with the factor of H^-1 from the following columns, without inverting H.

    Attributes:
        factor: float64 (D, D), L^T with each row divided by its diagonal.
        order: (D,), the column at each position of the factor.
        block_size: number of columns whose corrections are computed at once.

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
                column = grid.rounded(values, j)
                errors[j] = rounded[j] - column
                rounded[j] = column
        return rounded[self.order.argsort()].T.contiguous()


def _factor(hessian: Tensor, order: Tensor, damp_percent: float) -> Tensor:
    """Returns L^T of the reordered damped Hessian, each row divided by its diagonal, float64."""
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
    """Returns the grid of a weight, in its shape. A format without shared scales has scale 1.

    Weights that determine scales, such as the largest of a group or the ends of its range, must
    keep their rounded values.

    Args:
        number_format: format of the weight.
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
    scales = layout.scaling.measure(groups)
    scale, zero, is_anchor = (
        layout.groups.join(x.expand_as(groups), weight.shape)
        for x in (
            scales.values.masked_fill(scales.values == 0, 1),
            torch.zeros_like(scales.values) if scales.zero_points is None else scales.zero_points,
            layout.scaling.anchors(groups),
        )
    )
    rounded = (layout.element.round(weight / scale + zero) - zero) * scale
    fixed = torch.where(is_anchor, rounded, free)
    return _RoundingGrid(layout.element.round, scale, zero, fixed)
