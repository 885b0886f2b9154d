"""Parameters of a graph as codes: constants and embedding tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch.nn.functional as F
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.integer.base import NO_CALL, Call, IntegerOperator, IntegerOptions
from chop.nn.integer.blocks import BlockGrid
from chop.nn.integer.edge import Edge, Grid
from chop.nn.integer.parameters import integer_parameter
from chop.nn.quantized import QuantizedOperator


def _get_edge(codes: Tensor, step: float) -> Edge:
    return Edge.of(step, int(codes.min()), int(codes.max()))


class Constant(IntegerOperator):
    """Constant codes.

    Width: that of the codes.

    Args:
        codes: int64, any shape.
        step: step of the codes.
    """

    codes: Tensor

    def __init__(self, codes: Tensor, step: float) -> None:
        super().__init__(_get_edge(codes, step))
        self.register_buffer("codes", codes)

    @classmethod
    def of(cls, values: Tensor, grid: Grid | BlockGrid) -> Self:
        """Rounds real numbers to the grid of their reader."""
        return cls(grid.codes(values.detach()), grid.step)

    def forward(self) -> Tensor:
        """Returns the codes, int64."""
        return self.codes


class IntegerEmbedding(IntegerOperator):
    """Embedding: y = T[index], the codes of the weight's rows.

    Width: that of the codes.

    Args:
        codes: int64, (rows, columns).
        step: step of the codes.
    """

    codes: Tensor

    def __init__(self, codes: Tensor, step: float) -> None:
        super().__init__(_get_edge(codes, step))
        self.register_buffer("codes", codes)

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class; indices have no edge.

        Raises:
            ConfigError: if the weight has one scale per row, or its rows are renormalized.
        """
        assert isinstance(module, QuantizedOperator)
        weight = integer_parameter(module, "weight")
        if weight.step.dim() or getattr(module, "max_norm", None) is not None:
            raise ConfigError(
                f"{cls.__name__}: expected one scale for the whole table and no max_norm."
            )
        return cls(weight.codes, weight.step.item())

    def forward(self, indices: Tensor) -> Tensor:
        """Maps integer indices of any shape to (..., columns), int64."""
        return F.embedding(indices, self.codes)
