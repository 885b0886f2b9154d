"""Lookup tables of functions of one code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.nn.integer.base import IntegerOperator
from chop.nn.integer.edge import Edge, Grid

WIDEST_INDEX = 16
"""Maximum width of a table's index, in bits."""


def exceeds_table(read: Edge) -> bool:
    """Returns whether an edge has more codes than a table has entries."""
    return bool(read.high - read.low >= 2**WIDEST_INDEX)


def check_index(where: str, read: Edge) -> None:
    """Raises ConfigError if an edge has more codes than a table."""
    if exceeds_table(read):
        raise ConfigError(
            f"{where}: inputs from {read.low} to {read.high} exceed the 2^{WIDEST_INDEX} entries "
            "of a table; choose a narrower data_in."
        )


class Table(IntegerOperator):
    """Table of a function: y = T[x - low], with the reader's codes of f(x step) for all codes x.

    The table is exact: f is the operator itself, in float32, and the grid that of the reader. Each
    distinct reader therefore has its own table.

    Width: that of the reader; 2^w entries for inputs of w bits, at most 16.

    Args:
        entries: int64, (n,): y for the codes from `low` on.
        low: the smallest x.
        out: edge of the entries.
    """

    fixed_because = "it follows from number formats; its input needs one with a fixed scale"
    entries: Tensor

    def __init__(self, entries: Tensor, low: int, out: Edge) -> None:
        super().__init__(out)
        self.register_buffer("entries", entries)
        self.low = low

    @classmethod
    def of(cls, function: Callable[[Tensor], Tensor], read: Edge, grid: Grid) -> Self:
        """Returns the table of a function.

        Args:
            function: elementwise, float32 to float32: the operator, without the rounding of its
                input.
            read: edge of its input.
            grid: grid of the reader.
        Raises:
            ConfigError: if the input has more than 2^16 codes.
        """
        check_index(cls.__name__, read)
        entries = grid.codes(_values(function, read))
        return cls(entries, read.low, Edge.of(grid.step, int(entries.min()), int(entries.max())))

    @classmethod
    def fine_grid(cls, function: Callable[[Tensor], Tensor], read: Edge, bits: int) -> Grid:
        """Returns a grid, for a table without a reader's format, whose largest entry has `bits`
        bits.

        Args:
            function: as for `of`.
            read: as for `of`.
            bits: width of magnitudes.
        """
        check_index(cls.__name__, read)
        largest = float(_values(function, read).abs().max())
        step = 2.0 ** (math.frexp(largest)[1] - bits)
        return Grid(step, -(2**bits), 2**bits)

    def forward(self, codes: Tensor) -> Tensor:
        """Returns int64 in the shape of `codes`."""
        return self.entries[codes - self.low]


@torch.no_grad()
def _values(function: Callable[[Tensor], Tensor], read: Edge) -> Tensor:
    """Returns the function of all codes of an edge, float32."""
    return function(read.decode(torch.arange(read.low, read.high + 1)).float())
