"""Blocks of codes with a shared exponent, as in the format `mxint`."""

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
    """Blocks of numbers q 2^(E - places), |q| <= limit, with exponents E in a window.

    The E of a block is that of its largest magnitude, clipped to the window: larger values
    saturate, smaller ones are rounded with the lowest E. Within the window the numbers are those of
    the format. All codes have the step of the lowest E; codes of other blocks end in zeros.

    Attributes:
        sizes: sizes of a block, along its axes.
        dim: axis along which blocks run.
        skip_first_dim: the first axis is not blocked.
        places: fractional bits of an element.
        limit: largest q.
        lowest: smallest E.
        highest: largest E.
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
        """Returns the grid of a format in a window; None if its elements are not scaled integers.

        Args:
            number_format: such as `mxint`.
            lowest: smallest E of the blocks in calibration.
            highest: largest one.
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
        """The groups of elements that share an exponent."""
        return Blocks(self.sizes, self.dim, self.skip_first_dim)

    @property
    def step(self) -> float:
        """The step of all codes."""
        return 2.0 ** (self.lowest - self.places)

    @property
    def edge(self) -> Edge:
        """The edge of codes rounded to the grid."""
        end = self.limit << self.highest - self.lowest
        return Edge.of(self.step, -end, end)

    def codes(self, x: Tensor) -> Tensor:
        """Returns the int64 codes of real numbers; NaN is 0.

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
    """Returns the smallest and the largest E of the nonzero blocks of `x`; None if all are zero.

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
    """Encoder of real numbers to codes in blocks.

    Args:
        grid: grid of the result.
    """

    def __init__(self, grid: BlockGrid) -> None:
        super().__init__(grid.edge)
        self.grid: tuple[Any, ...] = tuple(grid)

    def forward(self, x: Tensor) -> Tensor:
        """Returns int64 in the shape of `x`, which is floating."""
        return BlockGrid(*self.grid).codes(x)


class RequantizeBlocks(IntegerOperator):
    """Rounds codes to blocks with shared exponents: y = sat(rhe(v, E - low)) 2^(E - lowest).

    E is the position of the leading one of the largest |v| in the block: a priority encoder, no
    logarithm.

    Width: the bits of an element, and those of the window of exponents.

    Args:
        edge: edge of the input; its step is a power of two.
        grid: grid of the result.

    Raises:
        ConfigError: if the input has another step, or several.

    Source: OCP Microscaling Formats (MX) Specification 1.0, section 6.3.
    """

    def __init__(self, edge: Edge, grid: BlockGrid) -> None:
        super().__init__(grid.edge)
        shift = None if edge.step.dim() else shift_between(edge.scalar_step / edge.divisor, 1.0)
        if shift is None or edge.divisor & (edge.divisor - 1):
            raise ConfigError(
                f"RequantizeBlocks: expected a single power of two as step, got {edge.steps[0]} "
                f"over {edge.divisor}; blocks with shared exponents have no multiplier."
            )
        check_width("RequantizeBlocks", edge.low, edge.high)
        self.grid: tuple[Any, ...] = tuple(grid)
        self.exponent = shift

    def forward(self, codes: Tensor, visible: Tensor | None = None) -> Tensor:
        """Returns int64 in the shape of `codes`.

        Args:
            codes: codes of the input.
            visible: boolean, broadcasts with `codes`: False sets the result to 0 and excludes the
                element from the exponent. Default: all True.
        """
        grid = BlockGrid(*self.grid)
        groups = grid.groups.split(codes if visible is None else codes.masked_fill(~visible, 0))
        leading = floor_log2(groups.abs().amax(-1, keepdim=True)) + self.exponent
        exponents = leading.clamp(grid.lowest, grid.highest)
        fallen = exponents - grid.places - self.exponent
        # Clipping before zeros are appended prevents overflow, and does not change the result.
        zeros = (-fallen).clamp(0, 62)
        room = (grid.limit >> zeros) + 1
        q = round_shift(groups, fallen.clamp(0, 62)).clamp(-room, room) << zeros
        q = q.clamp(-grid.limit, grid.limit)
        return grid.groups.join(q << exponents - grid.lowest, codes.shape)


def floor_log2(v: Tensor) -> Tensor:
    """Returns the position of the leading one of int64 numbers; 0 for 0.

    >>> floor_log2(torch.tensor([0, 1, 2, 3, 2**61 - 1]))
    tensor([ 0,  0,  1,  1, 60])
    """
    place = (v.double().frexp().exponent.long() - 1).clamp(min=0)
    return (place - (v >> place == 0).long()).clamp(min=0)
