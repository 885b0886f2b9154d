"""Linear layer on codes."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from chop.formats import NumberFormat
from chop.formats.elements import Sign
from chop.nn.integer.base import matmul
from chop.nn.integer.blocks import BlockGrid
from chop.nn.integer.constant import Constant
from chop.nn.integer.edge import Edge, bit_width
from chop.nn.integer.parameters import IntegerParameter
from chop.nn.integer.weighted import Aligned, CodeRanges, WeightedOperator, bounded
from chop.nn.quantized import QuantizedOperator


class SharedBlocks(NamedTuple):
    """Blocks of features with a shared power of two for the codes, and one for the weights.

    Attributes:
        size: features of a block.
        data_in_width: bits of an input's element.
        weight_width: bits of a weight's element.
    """

    size: int
    data_in_width: int
    weight_width: int

    @classmethod
    def of(cls, module: QuantizedOperator) -> Self | None:
        """Returns the blocks of a layer; None unless `data_in` and `weight` have blocks along
        features.

        Args:
            module: the layer; its formats are fitted.
        """
        grids = [_grid(module.operand_format(operand)) for operand in ("data_in", "weight")]
        data_in, weight = grids
        if data_in is None or weight is None or data_in.sizes[-1] != weight.sizes[-1]:
            return None
        if any(
            grid.dim not in (-1, 1) or max(grid.sizes[:-1], default=1) > 1 for grid in grids if grid
        ):
            return None
        widths = (bit_width(-grid.limit, grid.limit) for grid in (data_in, weight))
        return cls(data_in.sizes[-1], *widths)


def _grid(number_format: Any) -> BlockGrid | None:
    return BlockGrid.of(number_format, 0, 0) if isinstance(number_format, NumberFormat) else None


def _are_signs(number_format: Any) -> bool:
    layout = number_format.layout() if isinstance(number_format, NumberFormat) else None
    element = None if layout is None else layout.element
    return isinstance(element, Sign) and element.bipolar and not element.stochastic


class IntegerLinear(WeightedOperator):
    """Linear layer: acc[o] = (sum over i of x[i] w[o, i]) 2^shift + b[o].

    Width: see `WeightedOperator`; K is the number of inputs.

    `blocks` is set for inputs and weights in blocks with shared exponents: x[i] = q[i] 2^e and
    w[o, i] = p[o, i] 2^f[o] within a block. The sum over the block's products is then
    (sum of q[i] p[o, i]) 2^(e + f[o]), and a circuit computes the same integers this way.
    `has_signs` is true if all codes are -1 and 1, and `has_sign_weights` if the format of the
    weights has no other codes.
    """

    blocks: tuple[int, int, int] | None = None
    has_signs: bool = False
    has_sign_weights: bool = False

    def take_settings(self, module: nn.Module) -> None:
        """Takes over the blocks of features, and whether inputs are signs."""
        assert isinstance(module, QuantizedOperator)
        self.has_signs = _are_signs(module.operand_format("data_in"))
        self.has_sign_weights = _are_signs(module.operand_format("weight"))
        blocks = SharedBlocks.of(module)
        if blocks is not None:
            self.blocks = (blocks.size, blocks.data_in_width, blocks.weight_width)

    @classmethod
    def from_constant(cls, read: Edge, matrix: Constant, terms: int) -> Self:
        """Returns the product of codes and a constant (..., inputs, outputs) or (inputs,).

        Args:
            read: edge of the codes, of one step.
            matrix: the constant; dimensions ahead of the last two have size one.
            terms: products of a sum, as many as the matrix has rows.
        """
        edge, codes = matrix.out, matrix.codes.reshape(terms, -1).T.contiguous()
        aligned = Aligned(IntegerParameter(codes, edge.step), torch.zeros(len(codes)).long())
        ranges = CodeRanges(edge.low, edge.high, 0, 0) if matrix.is_loadable else None
        return cls(bounded(aligned, read, cls.axis, ranges))

    def forward(self, codes: Tensor) -> Tensor:
        """Maps (..., inputs) to (..., outputs), int64."""
        sums = matmul(codes, self.weight.T, self.bound)
        return (sums << self.shift) + self.bias
