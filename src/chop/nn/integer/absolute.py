"""Magnitudes of codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from torch import Tensor, nn

from chop.nn.integer.base import NO_CALL, Call, IntegerOperator, IntegerOptions
from chop.nn.integer.edge import Edge


class IntegerAbs(IntegerOperator):
    """Magnitude: y = |x|.

    Width: at most one bit more than the input, never below zero.
    """

    reads_exact = True

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class."""
        (read,) = inputs
        return cls(replace(read, low=max(read.low, -read.high, 0), high=max(-read.low, read.high)))

    def forward(self, codes: Tensor) -> Tensor:
        """Returns int64 in the shape of `codes`."""
        return codes.abs()
