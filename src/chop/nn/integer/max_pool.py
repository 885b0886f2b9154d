"""Maximum pooling of codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import torch.nn.functional as F
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.integer.base import EXACT_FLOAT, NO_CALL, Call, IntegerOperator, IntegerOptions
from chop.nn.integer.edge import Edge


class _IntegerMaxPool(IntegerOperator):
    """Maximum pooling: y[p] = the largest code in the window at p.

    Width: that of the input.
    """

    pool: ClassVar[Callable[..., Tensor]]
    reads_exact = True

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class.

        Raises:
            ConfigError: if codes reach 2^53, or the call returns indices.
        """
        (read,) = inputs
        if max(-read.low, read.high) >= EXACT_FLOAT or call.setting(
            module, "return_indices", False
        ):
            raise ConfigError(
                f"{cls.__name__}: expected codes below 2^53 without returned indices, got "
                f"{read.bits} bits."
            )
        operator = cls(read)
        operator.kernel_size = call.setting(module, "kernel_size", None)
        operator.stride = call.setting(module, "stride", None)
        operator.padding = call.setting(module, "padding", 0)
        operator.dilation = call.setting(module, "dilation", 1)
        operator.ceil_mode = call.setting(module, "ceil_mode", False)
        return operator

    def forward(self, codes: Tensor) -> Tensor:
        """Maps codes to (N, C, positions), int64."""
        # torch has no int64 pooling; float64 is exact below 2^53.
        maxima = self.pool(
            codes.double(),
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            ceil_mode=self.ceil_mode,
        )
        return maxima.long()


class IntegerMaxPool1d(_IntegerMaxPool):
    """1-D maximum pooling, of (N, C, L)."""

    pool = staticmethod(F.max_pool1d)


class IntegerMaxPool2d(_IntegerMaxPool):
    """2-D maximum pooling, of (N, C, H, W)."""

    pool = staticmethod(F.max_pool2d)
