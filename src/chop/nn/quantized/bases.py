"""Base classes for custom quantizers: MASE's `_LinearBase`, `_Conv1dBase`, `_Conv2dBase`.

A subclass sets `x_quantizer`, `w_quantizer` and `b_quantizer` in its constructor. Quantized
operators of chop have the same attributes and pass `isinstance` checks with a base.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from chop.nn.quantized import ops
from chop.nn.quantized.base import QuantizedOperator

Rounding = Callable[[Tensor], Tensor]


class _BaseClass(type):
    """Metaclass of the bases, which makes chop's quantized operators instances of them."""

    def __instancecheck__(cls, instance: Any) -> bool:
        """Accepts also the quantized operator that corresponds to a base, but not to its
        subclasses.
        """
        return super().__instancecheck__(instance) or isinstance(
            instance, vars(cls).get("twin", ())
        )


class _OwnQuantizers(nn.Module, metaclass=_BaseClass):
    """Mixin of a layer that quantizes its operands by functions that a subclass sets.

    Args:
        args: positional arguments of the `torch.nn` class.
        kwargs: keyword arguments of the `torch.nn` class.

    Attributes:
        bypass: True computes the result of the `torch.nn` class.
        x_quantizer: quantizer of the input. Default: none.
        w_quantizer: quantizer of the weight. Default: none.
        b_quantizer: quantizer of the bias. Default: none.
    """

    twin: ClassVar[type[QuantizedOperator]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bypass = False
        self.x_quantizer: Rounding | None = None
        self.w_quantizer: Rounding | None = None
        self.b_quantizer: Rounding | None = None

    def _quantized(self, quantizer: Rounding | None, tensor: Any) -> Any:
        if tensor is None or quantizer is None or self.bypass:
            return tensor
        return quantizer(tensor)


class LinearBase(_OwnQuantizers, nn.Linear):
    """`nn.Linear` with custom quantizers; input (..., in_features)."""

    twin = ops.QuantLinear

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        weight = self._quantized(self.w_quantizer, self.weight)
        bias = self._quantized(self.b_quantizer, self.bias)
        return F.linear(self._quantized(self.x_quantizer, x), weight, bias)


class Conv1dBase(_OwnQuantizers, nn.Conv1d):
    """`nn.Conv1d` with custom quantizers; input (N, C, L)."""

    twin = ops.QuantConv1d

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        weight = self._quantized(self.w_quantizer, self.weight)
        bias = self._quantized(self.b_quantizer, self.bias)
        y: Tensor = self._conv_forward(self._quantized(self.x_quantizer, x), weight, bias)
        return y


class Conv2dBase(_OwnQuantizers, nn.Conv2d):
    """`nn.Conv2d` with custom quantizers; input (N, C, H, W)."""

    twin = ops.QuantConv2d

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        weight = self._quantized(self.w_quantizer, self.weight)
        bias = self._quantized(self.b_quantizer, self.bias)
        y: Tensor = self._conv_forward(self._quantized(self.x_quantizer, x), weight, bias)
        return y


BASES: dict[str, type[_OwnQuantizers]] = {
    "_LinearBase": LinearBase,
    "_Conv1dBase": Conv1dBase,
    "_Conv2dBase": Conv2dBase,
}
"""Bases by MASE's names, in the module of their operator."""
