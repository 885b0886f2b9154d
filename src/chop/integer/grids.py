"""Integer grids of the operands in a quantized graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.padding.hidden import following, zeroed
from chop.captured.state.preserve_state import preserve_state
from chop.formats import Gradient, NumberFormat, StandIn
from chop.ir.graph import MaseGraph
from chop.nn.integer import (
    BlockGrid,
    Edge,
    Grid,
    IntegerOperator,
    Requantize,
    RequantizeBlocks,
    block_exponents,
)
from chop.nn.integer.edge import bit_width, shift_between
from chop.nn.quantized import QuantizedOperator, leaf_operators
from chop.private.modules import own_parameters

AnyGrid = Grid | BlockGrid
WINDOW = 8
"""Exponent range below the largest observed shared exponent. Smaller blocks are rounded coarser."""


@dataclass(frozen=True)
class Grids:
    """Grids of operands.

    Attributes:
        windows: smallest and largest shared exponent by operator id and operand name.
    """

    windows: Mapping[tuple[int, str], tuple[int, int]] = field(default_factory=dict)

    def of(self, operator: QuantizedOperator, operand: str) -> AnyGrid | None:
        """Returns the grid of an operand; None without a format."""
        number_format: Any = operator.operand_format(operand)
        if number_format.is_identity:
            return None
        grid = Grid.of(number_format)
        window = self.windows.get((id(operator), operand))
        if grid is None and window is not None:
            return BlockGrid.of(number_format, *window)
        return grid


@dataclass(eq=False)
class _Exponents(StandIn):
    """Rounds, and records the range of shared block exponents."""

    number_format: NumberFormat
    ends: tuple[int, int] | None = None

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        seen = block_exponents(self.number_format, zeroed(x))
        if seen is not None:
            low, high = self.ends or seen
            self.ends = min(low, seen[0]), max(high, seen[1])
        return self.number_format(x, gradient)


def observed_grids(mg: MaseGraph, batches: Iterable[Mapping[str, Any]]) -> Grids:
    """Returns the grids of a graph, with windows of shared exponents observed on batches.

    Args:
        mg: the quantized graph; it is not changed.
        batches: inputs by name.
    """
    steps = leaf_operators(mg.model).values()
    specs = {step: step.spec for step in steps}
    observers: dict[tuple[int, str], _Exponents] = {}
    for step, spec in specs.items():
        for operand, number_format in spec.items():
            blocks = isinstance(number_format, NumberFormat) and BlockGrid.of(number_format, 0, 0)
            if blocks and own_parameters(step).get(operand) is None:
                observers[id(step), operand] = _Exponents(spec.number_format(operand))
                step.spec = step.spec.with_quantizers(**{operand: observers[id(step), operand]})
    try:
        if observers:
            with preserve_state(mg.model), torch.no_grad():
                for batch in batches:
                    with following(mg.model, batch) as inputs:
                        mg.model(**inputs)
    finally:
        for step, spec in specs.items():
            step.spec = spec
    windows = {
        key: observer.ends for key, observer in observers.items() if observer.ends is not None
    }
    return Grids({key: (max(low, high - WINDOW), high) for key, (low, high) in windows.items()})


def requantizer(edge: Edge, grid: AnyGrid, like: nn.Module | None = None) -> IntegerOperator:
    """Returns the operator that requantizes codes of an edge to a grid; `like` as in `Call`."""
    if isinstance(grid, BlockGrid):
        return RequantizeBlocks(edge, grid)
    return Requantize(edge, grid, like)


def holds(grid: AnyGrid, edge: Edge) -> bool:
    """Returns whether codes of an edge already lie on a grid."""
    if isinstance(grid, BlockGrid) or grid.rounding not in ("nearest_even", "floor"):
        return False
    if edge.is_trained:  # with other weights, the step differs
        return False
    same = edge.divisor == 1 and edge.step.dim() == 0 and edge.scalar_step == grid.step
    return same and grid.low <= edge.low and edge.high <= grid.high


def grid_text(grid: AnyGrid) -> str:
    """Returns a grid's name: `s8f4` for signed 8 bits with step 2^-4; `b16f9` for blocks.

    >>> grid_text(Grid(2**-4, -128, 127)), grid_text(Grid(4.0, 0, 255)), grid_text(Grid(0.3, 0, 3))
    ('s8f4', 'u8fm2', 'u2')
    """
    ends = grid.edge
    width = bit_width(ends.low, ends.high) - (ends.low >= 0)
    fraction = shift_between(1.0, grid.step)
    text = "" if fraction is None else f"f{fraction}".replace("-", "m")
    kind = "b" if isinstance(grid, BlockGrid) else "s" if ends.low < 0 else "u"
    return f"{kind}{width}{text}"
