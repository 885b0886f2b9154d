"""Bases of layers with quantizers of one's own: MASE's `_LinearBase`, `_Conv1dBase`, `_Conv2dBase`.

A subclass sets `x_quantizer`, `w_quantizer` and `b_quantizer` in its constructor. `isinstance` with
a base holds for what chop quantized, too, whose quantizers have the same names.
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
    """Class of the bases: what chop quantized is an instance of theirs as well."""

    def __instancecheck__(cls, instance: Any) -> bool:
        """Also True of the quantized operator that a base has for a twin, not of its subclasses."""
        return super().__instancecheck__(instance) or isinstance(
            instance, vars(cls).get("twin", ())
        )


class _OwnQuantizers(nn.Module, metaclass=_BaseClass):
    """Mixin of a layer that quantizes its operands by functions that a subclass sets.

    Args:
        args: what the `torch.nn` class takes.
        kwargs: the same by name.

    Attributes:
        bypass: True computes what the `torch.nn` class does. Default, False.
        x_quantizer: of the input; None, the default, leaves it as it is.
        w_quantizer: of the weight; the same.
        b_quantizer: of the bias; the same.
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
    """`nn.Linear` with quantizers of one's own; input (..., in_features)."""

    twin = ops.QuantLinear

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        weight = self._quantized(self.w_quantizer, self.weight)
        bias = self._quantized(self.b_quantizer, self.bias)
        return F.linear(self._quantized(self.x_quantizer, x), weight, bias)


class Conv1dBase(_OwnQuantizers, nn.Conv1d):
    """`nn.Conv1d` with quantizers of one's own; input (N, C, L)."""

    twin = ops.QuantConv1d

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        weight = self._quantized(self.w_quantizer, self.weight)
        bias = self._quantized(self.b_quantizer, self.bias)
        y: Tensor = self._conv_forward(self._quantized(self.x_quantizer, x), weight, bias)
        return y


class Conv2dBase(_OwnQuantizers, nn.Conv2d):
    """`nn.Conv2d` with quantizers of one's own; input (N, C, H, W)."""

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
"""By MASE's names, in the module of their operator."""
