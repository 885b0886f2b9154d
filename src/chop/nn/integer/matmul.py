"""Matrix products of codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from torch import Tensor, nn

from chop.nn.integer.base import NO_CALL, Call, IntegerOperator, IntegerOptions, extreme_products
from chop.nn.integer.base import matmul as exact_matmul
from chop.nn.integer.edge import Edge


class IntegerMatmul(IntegerOperator):
    """Matrix product: acc[n, m] = sum over k of a[n, k] b[k, m]; the step is that of a times b.

    Width: K times the extreme products: the bits of both inputs and ceil(log2 K).

    Args:
        a: edge of the first input.
        b: edge of the second input.
        terms: K, the number of summed products.
    """

    def __init__(self, a: Edge, b: Edge, terms: int) -> None:
        low, high = extreme_products(a, b)
        super().__init__(Edge.of(a.scalar_step * b.scalar_step, terms * low, terms * high))
        self.bound = terms * max(-low, high)

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class; `call` has the shapes."""
        a, b = inputs
        return cls(a, b, call.shapes[0][-1])

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Maps (..., N, K) and (..., K, M) to (..., N, M), int64."""
        return exact_matmul(a, b, self.bound)
