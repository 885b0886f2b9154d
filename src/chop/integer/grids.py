"""Grids of a quantized graph: what its operators round their operands to, as whole numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

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
"""Places below the largest shared exponent seen: blocks smaller than that are rounded coarser."""


@dataclass(frozen=True)
class Grids:
    """The grids of operands.

    Attributes:
        windows: the smallest and the largest shared exponent of an operand, by the id of its
            operator and its name.
    """

    windows: Mapping[tuple[int, str], tuple[int, int]] = field(default_factory=dict)

    def of(self, operator: QuantizedOperator, operand: str) -> AnyGrid | None:
        """The grid that an operator rounds an operand to; None if there is none."""
        number_format: Any = operator.operand_format(operand)
        if number_format.is_identity:
            return None
        found = Grid.of(number_format)
        window = self.windows.get((id(operator), operand))
        if found is None and window is not None:
            return BlockGrid.of(number_format, *window)
        return found


@dataclass(eq=False)
class _Exponents(StandIn):
    """Rounds, and notes the shared exponents of blocks."""

    number_format: NumberFormat
    ends: tuple[int, int] | None = None

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        seen = block_exponents(self.number_format, zeroed(x))
        if seen is not None:
            low, high = self.ends or seen
            self.ends = min(low, seen[0]), max(high, seen[1])
        return self.number_format(x, gradient)


def observed_grids(mg: MaseGraph, batches: Iterable[Mapping[str, Any]]) -> Grids:
    """The grids of a graph; windows of shared exponents hold what batches show.

    Args:
        mg: the quantized graph; it is left as it was.
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
    windows = {key: found.ends for key, found in observers.items() if found.ends is not None}
    return Grids({key: (max(low, high - WINDOW), high) for key, (low, high) in windows.items()})


def requantizer(edge: Edge, grid: AnyGrid) -> IntegerOperator:
    """What rounds codes of an edge to a grid."""
    return RequantizeBlocks(edge, grid) if isinstance(grid, BlockGrid) else Requantize(edge, grid)


def holds(grid: AnyGrid, edge: Edge) -> bool:
    """Whether codes of an edge are those of a grid already."""
    if isinstance(grid, BlockGrid) or grid.rounding not in ("nearest_even", "floor"):
        return False
    same = edge.divisor == 1 and edge.step.dim() == 0 and edge.scalar_step == grid.step
    return same and grid.low <= edge.low and edge.high <= grid.high


def grid_text(grid: AnyGrid) -> str:
    """Name of a grid: `s8f4` of 8 bits with sign and a step of 2^-4; `b16f9` of blocks.

    >>> grid_text(Grid(2**-4, -128, 127)), grid_text(Grid(4.0, 0, 255)), grid_text(Grid(0.3, 0, 3))
    ('s8f4', 'u8fm2', 'u2')
    """
    ends = grid.edge
    width = bit_width(ends.low, ends.high) - (ends.low >= 0)
    fraction = shift_between(1.0, grid.step)
    text = "" if fraction is None else f"f{fraction}".replace("-", "m")
    kind = "b" if isinstance(grid, BlockGrid) else "s" if ends.low < 0 else "u"
    return f"{kind}{width}{text}"
