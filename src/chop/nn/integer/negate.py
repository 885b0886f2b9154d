"""Negation of codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from torch import Tensor, nn

from chop.nn.integer.base import NO_CALL, Call, IntegerOperator, IntegerOptions
from chop.nn.integer.edge import Edge


class IntegerNegate(IntegerOperator):
    """Negation: y = -x.

    Width: the bounds of the input are swapped.
    """

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
        return cls(replace(read, low=-read.high, high=-read.low))

    def forward(self, codes: Tensor) -> Tensor:
        """Returns int64 in the shape of `codes`."""
        return -codes
