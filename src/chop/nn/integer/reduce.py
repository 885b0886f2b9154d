"""Sums, means and maxima of codes along dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self

from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.integer.base import NO_CALL, Call, IntegerOperator, IntegerOptions
from chop.nn.integer.edge import Edge


class IntegerSum(IntegerOperator):
    """Sum: acc = sum of n codes.

    Width: the bits of the input and ceil(log2 n).

    Args:
        read: edge of the input.
        shape: shape of the input.
        dims: summed dimensions, counted from the end.
        keepdim: keeps them with size 1.

    Raises:
        ConfigError: if the steps differ along one of them.
    """

    is_mean: ClassVar[bool] = False
    is_maximum: ClassVar[bool] = False

    def __init__(
        self, read: Edge, shape: Sequence[int], dims: Sequence[int], keepdim: bool
    ) -> None:
        if read.step.dim() and read.axis in dims:
            raise ConfigError(
                f"{type(self).__name__}: channels have different steps; use a single scale."
            )
        count = math.prod(shape[dim] for dim in dims)
        gone = 0 if keepdim else sum(dim > read.axis for dim in dims)
        divisor = read.divisor * (count if self.is_mean else 1)
        terms = 1 if self.is_maximum else count
        low, high = read.low * terms, read.high * terms
        super().__init__(replace(read, axis=read.axis + gone, low=low, high=high, divisor=divisor))
        self.dims, self.keepdim = tuple(dims), keepdim

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class; `call` has the shapes, `dim` and `keepdim`."""
        (read,), shape = inputs, call.shapes[0]
        dim = call.arguments.get("dim")
        dims = [dim] if isinstance(dim, int) else dim or range(len(shape))
        from_end = [d - len(shape) if d >= 0 else d for d in dims]
        return cls(read, shape, from_end, bool(call.arguments.get("keepdim", False)))

    def forward(self, codes: Tensor) -> Tensor:
        """Returns int64, without the dimensions, or with size 1 there."""
        return codes.sum(self.dims, self.keepdim)


class IntegerMean(IntegerSum):
    """Mean: acc = sum of n codes; the reader divides by n, with a single rounding."""

    is_mean: ClassVar[bool] = True


class IntegerAMax(IntegerSum):
    """Maximum: y = the largest of n codes.

    Width: that of the input.
    """

    is_maximum: ClassVar[bool] = True
    reads_exact = True

    def forward(self, codes: Tensor) -> Tensor:
        """Returns int64, without the dimensions, or with size 1 there."""
        return codes.amax(self.dims, self.keepdim)
