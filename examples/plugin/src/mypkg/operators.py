"""Operator `maxout`: module, quantized class and integer twin."""

from collections.abc import Sequence

from torch import Tensor, nn

from chop.ir.ops import Operator
from chop.nn.integer import Edge, IntegerOperator, IntegerOptions
from chop.nn.integer.base import NO_CALL, Call
from chop.nn.quantized import QuantizedOperator


class Maxout(nn.Module):
    """The larger of each pair of features; input (..., features)."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns (..., features / 2)."""
        return input.unflatten(-1, (-1, 2)).amax(-1)


class QuantMaxout(QuantizedOperator, Maxout):
    """`Maxout`, quantized."""

    operands = ("data_in",)

    def forward(self, input: Tensor) -> Tensor:
        """Returns (..., features / 2), rounded."""
        y = self.quantize("data_in", input).unflatten(-1, (-1, 2)).amax(-1)
        return self.quantize("data_out", y)


class IntegerMaxout(IntegerOperator):
    """Maxout: y[i] = max(x[2i], x[2i + 1]). Width: that of the input."""

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> "IntegerMaxout":
        """Returns the twin, which has the bounds of its input."""
        (read,) = inputs
        return cls(read)

    def forward(self, codes: Tensor) -> Tensor:
        """Returns int64 (..., features / 2)."""
        return codes.unflatten(-1, (-1, 2)).amax(-1)


MAXOUT = Operator("maxout", "module", (Maxout,), quantized=QuantMaxout, integer=IntegerMaxout)
