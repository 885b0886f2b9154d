"""Functions and methods that a model calls without a module, quantized."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from chop.formats import QuantSpec
from chop.nn.quantized import state
from chop.nn.quantized.base import QuantizedOperator
from chop.nn.quantized.scores import hidden_of, masked_operands, masked_scores


class QuantCall(QuantizedOperator):
    """A function call with quantized operands: `add`, `matmul`, `softmax`, `F.linear` ...

    The call's own arguments stay where they are, in the graph, so one class serves every function.

    Args:
        function: what is called, with the arguments that `forward` gets.
        arguments: the function's first parameters by name, in order, and the operand that each
            is, or None to leave it alone.
        config: the formats.
    """

    function: Callable[..., Any]

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, str | None],
        config: QuantSpec | Mapping[str, Any] | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.function = function
        self.arguments = dict(arguments)
        self.meets_masks = getattr(function, "__name__", "").endswith("softmax")
        self.operands = tuple(dict.fromkeys(name for name in arguments.values() if name))
        self.spec = QuantSpec.parse(config or {}, self.operands, where=type(self).__name__)
        state.renew(self, QuantSpec())

    def with_spec(self, spec: QuantSpec) -> QuantCall:
        """The same call in other formats."""
        twin = copy.copy(self)
        twin.spec = spec.only(self.operands)
        state.renew(twin, self.spec)
        return twin

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function; arguments that are no operand pass unchanged."""
        operands = (*self.arguments.values(), *[None] * len(args))
        if self.meets_masks and not self.spec.is_float:
            return self._call_with_masks(operands, args, kwargs)
        quantized = [self.quantize(name, x) for name, x in zip(operands, args, strict=False)]
        named = {key: self.quantize(self.arguments.get(key), x) for key, x in kwargs.items()}
        return self.quantize("data_out", self.function(*quantized, **named))

    def _call_with_masks(
        self, operands: Sequence[str | None], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Calls the function; masked scores and their results are not rounded."""
        given = [*zip(operands, args, strict=False)]
        given += [(self.arguments.get(key), x) for key, x in kwargs.items()]
        tensors = [x for name, x in given if name and isinstance(x, Tensor)]
        scores = [x for x in tensors if x.is_floating_point()]
        masked = masked_scores(scores[0]) if len(scores) == 1 else masked_operands(scores)
        quantized = [
            self.quantize(name, x, hidden_of(masked, x.shape))
            if name and isinstance(x, Tensor)
            else x
            for name, x in given
        ]
        named = dict(zip(kwargs, quantized[len(args) :], strict=True))
        result = self.function(*quantized[: len(args)], **named)
        if not self.spec.data_out.is_identity and isinstance(result, Tensor):
            made = masked_operands([result])  # as of 0 and 1 times the lowest number
            if made is not None:
                masked = made if masked is None else masked | made
        return self.quantize("data_out", result, masked)

    def extra_repr(self) -> str:
        """The function's name and the formats."""
        return f"{self.function.__name__}, {super().extra_repr()}"


class QuantInPlaceCall(QuantCall):
    """A call that writes into its first argument or into `out`: `add_`, `x += y`, `relu_` ...

    What the function writes is rounded and lies where the function writes it, so that views and
    other names of that memory, be it a buffer, see it.
    """

    inplace = True  # as modules of torch say that they write

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function on a copy of what it writes into; returns what is written."""
        # Autograd may need what was there before, so that the function gets a copy.
        if kwargs.get("out") is not None:
            target = kwargs["out"]
        elif args:
            target, args = args[0], (args[0].clone(), *args[1:])
        else:
            name = next(iter(self.arguments))
            target, kwargs = kwargs[name], {**kwargs, name: kwargs[name].clone()}
        result = super().forward(*args, **kwargs)
        return target if result is target else target.copy_(result)
