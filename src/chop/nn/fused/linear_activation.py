"""Fused linear layer and activation, in one pass over the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.nn.adoption import adopt
from chop.private.torch_api import is_transformed, linear_pointwise

MIN_PRODUCTS = 2**20
"""Minimum number of multiplications for oneDNN's kernel, measured on x86 with AVX-512."""


@dataclass(frozen=True)
class Activation:
    """Activation that oneDNN can apply to a product while it is in registers.

    Attributes:
        reference: reference function.
        name: oneDNN's name; "none" applies it afterwards, in place.
        algorithm: oneDNN's name of the variant.
        in_place: in-place function for a tensor that nothing else reads.
    """

    reference: Callable[[Tensor], Tensor]
    name: str
    algorithm: str = ""
    in_place: Callable[[Tensor], Tensor] | None = None


ACTIVATIONS = {
    # oneDNN's own makes zeros of NaN.
    "relu": Activation(F.relu, "none", in_place=torch.relu_),
    "gelu": Activation(F.gelu, "gelu", "none"),
    "gelu_tanh": Activation(partial(F.gelu, approximate="tanh"), "gelu", "tanh"),
    "silu": Activation(F.silu, "swish"),
    "tanh": Activation(torch.tanh, "tanh"),
    "sigmoid": Activation(torch.sigmoid, "sigmoid"),
}
"""Activations by name."""


class LinearActivation(nn.Linear):
    """`activation(F.linear(input, weight, bias))`; input (..., in_features).

    oneDNN applies the activation to each block of the product before it is stored. It is used
    without gradients, in float32 on a CPU, from `MIN_PRODUCTS` multiplications; other cases use
    `reference`. Parameters and `state_dict` keys are those of `nn.Linear`.
    """

    activation: str

    @classmethod
    def from_linear(cls, linear: nn.Linear, activation: str) -> Self:
        """Takes over the parameters, device and mode of a layer, which must not be used afterwards.

        Args:
            linear: the layer.
            activation: one of `ACTIVATIONS`.
        """
        twin = adopt(cls, linear)
        twin.activation = activation
        return twin

    def reference(self, input: Tensor) -> Tensor:
        """Computes the reference: linear layer, then activation."""
        return ACTIVATIONS[self.activation].reference(F.linear(input, self.weight, self.bias))

    def forward(self, input: Tensor) -> Tensor:  # noqa: D102
        if not self._is_for_onednn(input):
            return self.reference(input)
        activation = ACTIVATIONS[self.activation]
        y = linear_pointwise(input, self.weight, self.bias, activation.name, activation.algorithm)
        return y if activation.in_place is None else activation.in_place(y)

    def _is_for_onednn(self, input: Tensor) -> bool:
        # The two tests that small layers fail come first: they cost these layers their time.
        if torch.compiler.is_compiling() or input.numel() * self.out_features < MIN_PRODUCTS:
            return False
        weight = self.weight
        learns = torch.is_grad_enabled() and (
            input.requires_grad or any(p.requires_grad for p in self.parameters(recurse=False))
        )
        learns = learns or is_transformed()
        return (
            not learns
            and input.dtype == weight.dtype == torch.float32
            and input.is_cpu
            and weight.is_cpu
            and torch.backends.mkldnn.is_available()
            and bool(torch.backends.mkldnn.enabled)
            and not torch.is_autocast_enabled("cpu")
        )

    def extra_repr(self) -> str:
        """Returns the linear layer's text and the activation."""
        return f"{super().extra_repr()}, activation={self.activation}"
