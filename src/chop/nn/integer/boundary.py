"""Ends of an integer graph: what the host does, from real numbers to codes and back."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chop.nn.integer.base import IntegerOperator
from chop.nn.integer.edge import Edge, Grid


class Encode(IntegerOperator):
    """Codes of real numbers, rounded as the grid's format does.

    Args:
        grid: of the result.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid.edge)
        self.rounding, self.threshold = grid.rounding, grid.threshold

    def forward(self, x: Tensor) -> Tensor:
        """int64, shape of `x`, which is floating."""
        step = self.out.scalar_step
        grid = Grid(step, self.out_low, self.out_high, self.rounding, self.threshold)
        return grid.codes(x)


class Decode(nn.Module):
    """Real numbers of codes, float32: the one place that rounds to it.

    Args:
        edge: of the codes.
    """

    def __init__(self, edge: Edge) -> None:
        super().__init__()
        steps = edge.by_channel(edge.step).tolist()
        self.steps, self.divisor = steps, edge.divisor

    def forward(self, codes: Tensor) -> Tensor:
        """float32, shape of `codes`."""
        step = torch.tensor(self.steps, dtype=torch.float64, device=codes.device)
        return (codes.double() * step / self.divisor).float()
