"""Boundary of an integer graph: conversion between real numbers and codes on the host."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chop.nn.integer.base import IntegerOperator
from chop.nn.integer.edge import Edge, Grid


class Encode(IntegerOperator):
    """Encoder of real numbers to codes, with the rounding of the grid's format.

    Args:
        grid: grid of the result.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid.edge)
        self.rounding, self.threshold = grid.rounding, grid.threshold

    def forward(self, x: Tensor) -> Tensor:
        """Returns int64 in the shape of `x`, which is floating."""
        step = self.out.scalar_step
        grid = Grid(step, self.out_low, self.out_high, self.rounding, self.threshold)
        return grid.codes(x)


class Decode(nn.Module):
    """Decoder of codes to real numbers, with a single rounding to float32.

    Args:
        edge: edge of the codes.
    """

    def __init__(self, edge: Edge) -> None:
        super().__init__()
        steps = edge.by_channel(edge.step).tolist()
        self.steps, self.divisor = steps, edge.divisor

    def forward(self, codes: Tensor) -> Tensor:
        """Returns float32 in the shape of `codes`."""
        step = torch.tensor(self.steps, dtype=torch.float64, device=codes.device)
        return (codes.double() * step / self.divisor).float()
