"""Functions and methods that a model calls without a module, quantised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chop.formats import QuantSpec
from chop.nn.quantized.base import QuantizedOperator


class QuantCall(QuantizedOperator):
    """A function call with quantised operands: `add`, `matmul`, `softmax`, `F.linear` ...

    The call's own arguments stay where they are, in the graph, so one class serves every function.

    Args:
        function: what is called, with the arguments that `forward` gets.
        operands: the operand that each positional argument is, or None to leave it alone.
        config: the formats.
    """

    fallback = {"weight": "data_in"}  # noqa: RUF012

    def __init__(
        self,
        function: Callable[..., Any],
        operands: Sequence[str | None] = ("data_in",),
        config: QuantSpec | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(config=config)
        self.function = function
        self.argument_operands = tuple(operands)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function; arguments beyond the declared operands pass unchanged."""
        operands = self.argument_operands
        quantized = [
            x if operand is None else self.quantize(operand, x)
            for operand, x in zip(operands, args, strict=False)
        ]
        return self.quantize(
            "data_out", self.function(*quantized, *args[len(operands) :], **kwargs)
        )

    def extra_repr(self) -> str:
        """The function's name and the formats."""
        return f"{self.function.__name__}, {super().extra_repr()}"
