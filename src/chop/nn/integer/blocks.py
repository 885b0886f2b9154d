"""Blocks of codes with a shared exponent: what readers in `mxint` round to."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.formats import NumberFormat
from chop.formats.elements import Fixed
from chop.formats.groups import Blocks
from chop.formats.scaling import SharedExponent
from chop.nn.integer.base import IntegerOperator, check_width
from chop.nn.integer.edge import Edge, shift_between
from chop.nn.integer.rounding import round_shift


class BlockGrid(NamedTuple):
    """Blocks of numbers q 2^(E - places), |q| <= limit, in a window of exponents E.

    A block has the E of its largest magnitude, clipped to the window: beyond it, values saturate;
    below, they are rounded as if the block had the lowest E. Within it the numbers are those of the
    format. All codes have the step of the lowest E: those of other blocks end in zeros.

    Attributes:
        sizes: of a block, along its axes.
        dim: the axis along which blocks run.
        skip_first_dim: the first axis is not blocked.
        places: behind the point of an element.
        limit: the largest q.
        lowest: the smallest E.
        highest: the largest E.
    """

    sizes: tuple[int, ...]
    dim: int
    skip_first_dim: bool
    places: int
    limit: int
    lowest: int
    highest: int

    @classmethod
    def of(cls, number_format: NumberFormat, lowest: int, highest: int) -> BlockGrid | None:
        """The grid of a format in a window; None if it is no whole numbers with shared exponents.

        Args:
            number_format: such as `mxint`.
            lowest: the smallest E, of the blocks that calibration has seen.
            highest: the largest one.
        """
        layout = number_format.layout() if number_format.is_fitted else None
        if layout is None or not isinstance(layout.groups, Blocks):
            return None
        element, scaling, groups = layout.element, layout.scaling, layout.groups
        if not isinstance(element, Fixed) or not isinstance(scaling, SharedExponent):
            return None
        if not _follows_largest(scaling) or element.rounding != "nearest_even":
            return None
        places, limit = element.frac_width, element.largest_code
        window = max(lowest, scaling.lowest), min(highest, scaling.largest)
        return cls(groups.sizes, groups.dim, groups.skip_first_dim, places, limit, *window)

    @property
    def groups(self) -> Blocks:
        """Which elements share an exponent."""
        return Blocks(self.sizes, self.dim, self.skip_first_dim)

    @property
    def step(self) -> float:
        """Of all codes."""
        return 2.0 ** (self.lowest - self.places)

    @property
    def edge(self) -> Edge:
        """Of codes that have been rounded to the grid."""
        end = self.limit << self.highest - self.lowest
        return Edge.of(self.step, -end, end)

    def codes(self, x: Tensor) -> Tensor:
        """int64: the codes of real numbers; NaN is 0.

        Args:
            x: any shape and floating dtype.
        """
        groups = self.groups.split(x.double().nan_to_num(nan=0.0))
        largest = groups.abs().amax(-1, keepdim=True)
        shift = (largest.frexp().exponent - 1).clamp(self.lowest, self.highest) - self.lowest
        steps = groups / self.step * torch.exp2(-shift.double())
        q = steps.round().clamp(-self.limit, self.limit).long()
        return self.groups.join(q << shift, x.shape)


def block_exponents(number_format: NumberFormat, x: Tensor) -> tuple[int, int] | None:
    """The smallest and the largest E of blocks of `x` that are not zero; None if all are.

    Args:
        number_format: such as `mxint`.
        x: any shape and floating dtype, finite.
    """
    layout = number_format.layout()
    assert layout is not None
    largest = layout.groups.split(x.double()).abs().amax(-1)
    exponents = largest[largest > 0].frexp().exponent - 1
    return (int(exponents.min()), int(exponents.max())) if exponents.numel() else None


def _follows_largest(scaling: SharedExponent) -> bool:
    return scaling.offset == 0 and scaling.increment_threshold == 2.0


class EncodeBlocks(IntegerOperator):
    """Codes of real numbers in blocks.

    Args:
        grid: of the result.
    """

    def __init__(self, grid: BlockGrid) -> None:
        super().__init__(grid.edge)
        self.grid: tuple[Any, ...] = tuple(grid)

    def forward(self, x: Tensor) -> Tensor:
        """int64, shape of `x`, which is floating."""
        return BlockGrid(*self.grid).codes(x)


class RequantizeBlocks(IntegerOperator):
    """Rounds codes to blocks with shared exponents: y = sat(rhe(v, E - low)) 2^(E - lowest).

    E follows the leading one of the largest |v| in the block: a priority encoder, no logarithm.

    Width: the bits of an element, and those of the window of exponents.

    Args:
        edge: of the input; its step is a power of two.
        grid: of the result.

    Raises:
        ConfigError: the input has another step, or several.

    Source: OCP Microscaling Formats (MX) Specification 1.0, section 6.3.
    """

    def __init__(self, edge: Edge, grid: BlockGrid) -> None:
        super().__init__(grid.edge)
        shift = None if edge.step.dim() else shift_between(edge.scalar_step / edge.divisor, 1.0)
        if shift is None or edge.divisor & (edge.divisor - 1):
            raise ConfigError(
                f"RequantizeBlocks: expected one step that is a power of two, got {edge.steps[0]} "
                f"over {edge.divisor}; blocks with shared exponents have no multiplier."
            )
        check_width("RequantizeBlocks", edge.low, edge.high)
        self.grid: tuple[Any, ...] = tuple(grid)
        self.exponent = shift

    def forward(self, codes: Tensor, kept: Tensor | None = None) -> Tensor:
        """int64, shape of `codes`.

        Args:
            codes: codes of the input.
            kept: boolean, broadcasts with `codes`: what is False becomes 0, and no exponent
                follows it. None: all are kept.
        """
        grid = BlockGrid(*self.grid)
        groups = grid.groups.split(codes if kept is None else codes.masked_fill(~kept, 0))
        leading = floor_log2(groups.abs().amax(-1, keepdim=True)) + self.exponent
        of_block = leading.clamp(grid.lowest, grid.highest)
        fallen = of_block - grid.places - self.exponent
        # Zeros are appended to what cannot saturate, or saturates by then.
        zeros = (-fallen).clamp(0, 62)
        room = (grid.limit >> zeros) + 1
        q = round_shift(groups, fallen.clamp(0, 62)).clamp(-room, room) << zeros
        q = q.clamp(-grid.limit, grid.limit)
        return grid.groups.join(q << of_block - grid.lowest, codes.shape)


def floor_log2(v: Tensor) -> Tensor:
    """Place of the leading one of int64 numbers; 0 of 0.

    >>> floor_log2(torch.tensor([0, 1, 2, 3, 2**61 - 1]))
    tensor([ 0,  0,  1,  1, 60])
    """
    place = (v.double().frexp().exponent.long() - 1).clamp(min=0)
    return (place - (v >> place == 0).long()).clamp(min=0)
