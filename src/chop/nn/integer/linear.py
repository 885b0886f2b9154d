"""Linear layer on codes."""

from __future__ import annotations

from torch import Tensor

from chop.nn.integer.base import matmul
from chop.nn.integer.weighted import WeightedOperator


class IntegerLinear(WeightedOperator):
    """Linear layer: acc[o] = (sum over i of x[i] w[o, i]) 2^shift + b[o].

    Width: see `WeightedOperator`; K is the number of inputs.
    """

    def forward(self, codes: Tensor) -> Tensor:
        """(..., inputs) to (..., outputs), int64."""
        sums = matmul(codes, self.weight.T, self.bound)
        return (sums << self.shift) + self.bias
