"""Steps of an integer graph: operators, the codes between them, and the grids that read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from chop.nn.integer import Edge, Grid
from chop.nn.integer.edge import bits_of, shift_between
from chop.nn.quantized import QuantizedOperator


@dataclass(frozen=True)
class Codes:
    """Codes in the new graph.

    Attributes:
        node: gives them.
        edge: what they mean; None of whole numbers that are no codes: token ids, masks.
    """

    node: fx.Node
    edge: Edge | None

    @property
    def proven(self) -> Edge:
        """What they mean; they are codes."""
        assert self.edge is not None
        return self.edge


@dataclass(eq=False)
class Step:
    """An operator of the new graph beside what it stands for.

    Attributes:
        name: of the node in the old graph, and which step of it.
        kind: name of the operator.
        inputs: what it reads.
        result: what it returns.
        reference: its result by the quantised graph, from real numbers.
        dtype: of these.
        readers: the result in the codes of each grid that it is read in.
    """

    name: str
    kind: str
    inputs: tuple[Codes, ...]
    result: Codes
    reference: Callable[..., Tensor]
    dtype: torch.dtype
    readers: list[tuple[fx.Node, Grid]] = field(default_factory=list)


def grid_of(operator: QuantizedOperator, operand: str) -> Grid | None:
    """The grid that an operator rounds an operand to; None if there is none."""
    number_format: Any = operator.format_of(operand)
    return None if number_format.is_identity else Grid.of(number_format)


def holds(grid: Grid, edge: Edge) -> bool:
    """Whether codes of an edge are those of a grid already."""
    is_whole = grid.rounding in ("nearest_even", "floor") and edge.divisor == 1
    same = is_whole and edge.step.dim() == 0 and edge.scalar_step == grid.step
    return same and grid.low <= edge.low and edge.high <= grid.high


def grid_text(grid: Grid) -> str:
    """Name of a grid: `s8f4` of 8 bits with sign and a step of 2^-4.

    >>> grid_text(Grid(2**-4, -128, 127)), grid_text(Grid(4.0, 0, 255)), grid_text(Grid(0.3, 0, 3))
    ('s8f4', 'u8fm2', 'u2')
    """
    width = bits_of(grid.low, grid.high) - (grid.low >= 0)
    fraction = shift_between(1.0, grid.step)
    text = "" if fraction is None else f"f{fraction}".replace("-", "m")
    return f"{'s' if grid.low < 0 else 'u'}{width}{text}"
