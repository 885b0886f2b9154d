"""Parameters of a graph as codes: constants and embedding tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch.nn.functional as F
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.integer.base import NO_CALL, Call, IntegerOperator, IntegerOptions
from chop.nn.integer.blocks import BlockGrid
from chop.nn.integer.edge import Edge, Grid
from chop.nn.integer.parameters import code_range, has_trained_step, integer_parameter
from chop.nn.quantized import QuantizedOperator


class _Codes(IntegerOperator):
    """Codes of a parameter.

    Width: that of the codes.

    Args:
        codes: int64, any shape.
        step: step of the codes.
        ends: smallest and largest code if the codes are loadable; None for fixed ones.
        is_trained: as in `Edge`.
    """

    codes: Tensor

    def __init__(
        self,
        codes: Tensor,
        step: float,
        ends: tuple[int, int] | None = None,
        is_trained: bool = False,
    ) -> None:
        low, high = ends or (int(codes.min()), int(codes.max()))
        super().__init__(replace(Edge.of(step, low, high), is_trained=is_trained))
        self.is_loadable = ends is not None
        self.register_buffer("codes", codes)


class Constant(_Codes):
    """Constant codes.

    Width: that of the codes. Arguments are those of `IntegerEmbedding`, with codes of any shape.
    """

    @classmethod
    def of(
        cls, values: Tensor, grid: Grid | BlockGrid, ends: tuple[int, int] | None = None
    ) -> Self:
        """Rounds real numbers to the grid of their reader; `ends` as in the class."""
        return cls(grid.codes(values.detach()), grid.step, ends)

    def forward(self) -> Tensor:
        """Returns the codes, int64."""
        return self.codes


class IntegerEmbedding(_Codes):
    """Embedding: y = T[index], the codes of the weight's rows.

    Width: that of the codes.

    Args:
        codes: int64, (rows, columns).
        step: step of the codes.
        ends: smallest and largest code if the codes are loadable; None for fixed ones.
        is_trained: as in `Edge`.
    """

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
        ends = code_range(module, "weight") if options.is_loadable else None
        is_trained = ends is not None and has_trained_step(module, "weight")
        return cls(weight.codes, weight.step.item(), ends, is_trained)

    def forward(self, indices: Tensor) -> Tensor:
        """Maps integer indices of any shape to (..., columns), int64."""
        return F.embedding(indices, self.codes)
