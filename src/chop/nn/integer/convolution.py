"""Convolutions on codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.integer.base import EXACT_FLOAT, Call
from chop.nn.integer.edge import Edge
from chop.nn.integer.parameters import IntegerParameter
from chop.nn.integer.resample import ZERO, IntegerResample
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


class IntegerConvTranspose2d(IntegerConv2d):
    """2-D transposed convolution, of (N, C, H, W) with inserted zeros.

    It is the convolution with the mirrored kernel, over the codes that `spread` returns. Its
    padding differs at both ends: rows or columns behind the codes are added or not read.

    Source: Dumoulin and Visin 2016, arXiv:1603.07285, section 4.
    """

    @classmethod
    def spread(cls, module: nn.Module | None, read: Edge, call: Call) -> IntegerResample:
        """Returns the operator that inserts stride - 1 zeros between codes.

        Raises:
            ConfigError: if the padding crops the result at its beginning.
        """
        layer: Any = module
        if call.arguments.get("output_size") is not None:
            raise ConfigError("ConvTranspose2d: set output_padding instead of output_size.")
        if min(_before(layer)) < 0:
            raise ConfigError(
                "ConvTranspose2d: its padding exceeds its kernel; use less padding and slice the "
                "result."
            )
        zeros = [
            (min(before, stride - 1), stride)
            for before, stride in zip(_before(layer), layer.stride, strict=True)
        ]
        indices = [
            [i if k == at else ZERO for i in range(size) for k in range(stride)]
            for size, (at, stride) in zip(call.shapes[0][2:], zeros, strict=True)
        ]
        return IntegerResample(read, indices)

    @classmethod
    def arranged(cls, module: nn.Module, weight: IntegerParameter) -> IntegerParameter:
        """Returns the mirrored weights with the outputs along the first axis.

        Raises:
            ConfigError: if there is a scale for each input channel.
        """
        layer: Any = module
        if weight.step.dim():
            raise ConfigError(
                "ConvTranspose2d.weight: scales of input channels have no integer form; use one "
                "scale."
            )
        groups = weight.codes.view(layer.groups, -1, *weight.codes.shape[1:]).transpose(1, 2)
        return weight._replace(codes=groups.flatten(0, 1).flip(-1, -2))

    def take_settings(self, module: nn.Module) -> None:
        """Takes over padding, dilation and groups."""
        super().take_settings(module)
        layer: Any = module
        before = _before(layer)
        self.stride = 1, 1
        self.padding = tuple(
            n - min(n, stride - 1) for n, stride in zip(before, layer.stride, strict=True)
        )
        # Zeros behind the last code that are inserted already, or not needed.
        given = [s - 1 - min(n, s - 1) for n, s in zip(before, layer.stride, strict=True)]
        self.behind = tuple(
            n + more - less
            for n, more, less in zip(before, layer.output_padding, given, strict=True)
        )

    def forward(self, codes: Tensor) -> Tensor:
        """Maps (N, channels, positions) with inserted zeros to (N, outputs, positions), int64."""
        extra = [end - start for start, end in zip(self.padding, self.behind, strict=True)]
        # torch pads both ends alike; the last dimension comes first.
        return super().forward(F.pad(codes, (0, extra[1], 0, extra[0])))


def _before(layer: Any) -> list[int]:
    """Returns the zeros ahead of the first code along each axis."""
    settings = zip(layer.kernel_size, layer.dilation, layer.padding, strict=True)
    return [dilation * (taps - 1) - padding for taps, dilation, padding in settings]
