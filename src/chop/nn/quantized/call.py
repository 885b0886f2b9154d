"""Quantized calls of functions and methods."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from chop.captured.padding.masks import MASKS_AHEAD
from chop.formats import QuantSpec
from chop.nn.quantized import state
from chop.nn.quantized.base import QuantizedOperator
from chop.nn.quantized.scores import (
    hidden_ahead,
    is_fill,
    large_scores,
    masked_choice,
    masked_operands,
    masked_scores,
    operand_mask,
)

SELECTORS = frozenset({"condition", "mask"})
"""Boolean arguments that select between two numbers."""


class QuantCall(QuantizedOperator):
    """A function call with quantized operands: `add`, `matmul`, `softmax`, `F.linear` ...

    Other arguments of the call stay in the graph, so one class supports every function.

    Args:
        function: the function, which gets the arguments of `forward`.
        arguments: the function's first parameters by name, in order, with their operands, or None
            for parameters that are not quantized.
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
        self.meets_masks = getattr(function, "__name__", "").endswith("softmax") or self._selects
        self.operands = tuple(dict.fromkeys(name for name in arguments.values() if name))
        self.spec = QuantSpec.parse(
            {} if config is None else config, self.operands, where=type(self).__name__
        )
        state.renew(self, QuantSpec())

    def with_spec(self, spec: QuantSpec) -> QuantCall:
        """Returns the call in other formats."""
        twin = copy.copy(self)
        twin.spec = spec.only(self.operands)
        state.renew(twin, self.spec)
        return twin

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function; arguments that are not operands pass unchanged."""
        operands = (*self.arguments.values(), *[None] * len(args))
        if self.meets_masks:
            masks = kwargs.pop(MASKS_AHEAD, ())
            if not self.spec.is_float:
                return self._call_with_masks(operands, args, kwargs, masks)
        quantized = [self.quantize(name, x) for name, x in zip(operands, args, strict=False)]
        named = {key: self.quantize(self.arguments.get(key), x) for key, x in kwargs.items()}
        return self.quantize("data_out", self.function(*quantized, **named))

    def _call_with_masks(
        self,
        operands: Sequence[str | None],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        masks: Sequence[Any],
    ) -> Any:
        """Calls the function; masked scores, their results and fill values are not rounded."""
        given = [*zip(operands, args, strict=False)]
        given += [(self.arguments.get(key), x) for key, x in kwargs.items()]
        if self._selects:
            given = [(None if is_fill(x) else name, x) for name, x in given]
        tensors = [x for name, x in given if name and isinstance(x, Tensor)]
        scores = [x for x in tensors if x.is_floating_point()]
        masked, shapes = self._masked(scores, args, kwargs)
        if masks and scores:
            whole = scores[0].expand(torch.broadcast_shapes(*shapes))
            masked = _joined(masked, hidden_ahead(masks, whole))

        def hidden(x: Tensor) -> Tensor | None:
            part = operand_mask(masked, x.shape)
            # A selection may leave masked scores, which are in no scale either.
            return _joined(part, large_scores(x)) if self._selects else part

        quantized = [
            self.quantize(name, x, hidden(x)) if name and x.is_floating_point() else x
            for name, x in ((name if isinstance(x, Tensor) else None, x) for name, x in given)
        ]
        named = dict(zip(kwargs, quantized[len(args) :], strict=True))
        result = self.function(*quantized[: len(args)], **named)
        if not self.spec.data_out.is_identity and isinstance(result, Tensor):
            # As of 0 and 1 times the lowest number.
            masked = _joined(masked, masked_operands([result]))
        return self.quantize("data_out", result, masked)

    @property
    def _selects(self) -> bool:
        """True for `where` and `masked_fill`, which select between two numbers."""
        return not SELECTORS.isdisjoint(self.arguments)

    def _masked(
        self, scores: Sequence[Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Tensor | None, list[torch.Size]]:
        """Returns the masked elements of the result known so far, and the shapes that broadcast to
        it.
        """
        shapes = [x.shape for x in scores]
        if not self._selects:
            return masked_scores(scores[0]) if len(scores) == 1 else masked_operands(scores), shapes
        given = {**dict(zip(self.arguments, args, strict=False)), **kwargs}
        if "mask" in given:
            choice = given["mask"], given["value"], given["input"]
        else:
            choice = given["condition"], given["input"], given["other"]
        return masked_choice(*choice), [*shapes, choice[0].shape]

    def extra_repr(self) -> str:
        """Returns the function's name and the formats."""
        return f"{self.function.__name__}, {super().extra_repr()}"


class QuantScores(QuantCall):
    """A product of queries and keys before a mask: `matmul`, `bmm`.

    Blocks of keys run along the sum, like those of queries, so that no block spans two keys. Scores
    that the mask hides stay unchanged.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function on (..., Q, D) and (..., D, K)."""
        masks = kwargs.pop(MASKS_AHEAD, ())
        (first, second), Q = self.arguments, self.quantize
        given = {**dict(zip(self.arguments, args, strict=False)), **kwargs}
        query, key = given.pop(first), given.pop(second)
        query = Q(self.arguments[first], query)
        key = Q(self.arguments[second], key.mT).mT
        result = self.function(query, key, **given)
        hidden = None if self.spec.data_out.is_identity else hidden_ahead(masks, result)
        return Q("data_out", result, hidden)


class QuantContext(QuantCall):
    """A product of softmax results and values: `matmul`, `bmm`.

    Zero weights of hidden keys stay zero even in formats without a zero, and do not affect scales.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function on (..., Q, K) and (..., K, D)."""
        (first, second), Q = self.arguments, self.quantize
        given = {**dict(zip(self.arguments, args, strict=False)), **kwargs}
        weights, value = given.pop(first), given.pop(second)
        name = self.arguments[first]
        hidden = None if name is None or self.operand_format(name).ignores_zeros else weights == 0
        product = self.function(Q(name, weights, hidden), Q(self.arguments[second], value), **given)
        return Q("data_out", product)


def _joined(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Returns the union of two masks."""
    if one is None or other is None:
        return one if other is None else other
    return one | other


class QuantInPlaceCall(QuantCall):
    """A call that writes into its first argument or into `out`: `add_`, `x += y`, `relu_` ...

    The written values are rounded in place, so that views and aliases of the memory, including
    buffers, see them.
    """

    inplace = True  # as modules of torch say that they write

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function on a copy of its target; returns the written target."""
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
