"""Convolutions on codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.integer.base import EXACT_FLOAT
from chop.nn.integer.weighted import WeightedOperator


class _IntegerConvolution(WeightedOperator):
    """Convolution: acc[o, p] = (sum of codes under the kernel at p times w[o]) 2^shift + b[o].

    Width: see `WeightedOperator`; K is the number of weights of an output.
    """

    convolve: ClassVar[Callable[..., Tensor]]

    def take_settings(self, module: nn.Module) -> None:
        """Takes over stride, padding, dilation and groups.

        Raises:
            ConfigError: if sums can reach 2^53, or the padding is not zero.
        """
        layer: Any = module
        if self.bound >= EXACT_FLOAT:
            raise ConfigError(
                f"{type(module).__name__}: sums of products up to {self.bound} are not exact in "
                "float64, the dtype of convolutions; choose narrower formats."
            )
        if layer.padding_mode != "zeros":
            raise ConfigError(
                f"{type(module).__name__}: expected zero padding, got '{layer.padding_mode}'."
            )
        self.stride, self.padding = layer.stride, layer.padding
        self.dilation, self.groups = layer.dilation, layer.groups

    def forward(self, codes: Tensor) -> Tensor:
        """Maps (N, channels, positions) to (N, outputs, positions), int64."""
        # torch has no int64 convolution; float64 is exact below 2^53.
        x, weight = codes.double(), self.weight.double()
        sums = self.convolve(x, weight, None, self.stride, self.padding, self.dilation, self.groups)
        return (sums.long() << self.shift) + self.bias


class IntegerConv1d(_IntegerConvolution):
    """1-D convolution, of (N, C, L)."""

    axis: ClassVar[int] = -2
    convolve = staticmethod(F.conv1d)


class IntegerConv2d(_IntegerConvolution):
    """2-D convolution, of (N, C, H, W)."""

    axis: ClassVar[int] = -3
    convolve = staticmethod(F.conv2d)
