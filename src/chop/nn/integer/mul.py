"""Element-wise products of codes, and products with a constant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.nn.integer.base import NO_CALL, Call, IntegerOperator, IntegerOptions, extreme_products
from chop.nn.integer.edge import Edge

SIGNIFICAND_BITS = 24
"""Bits of a float32 significand."""


class IntegerMul(IntegerOperator):
    """Product: y = a b; the step is that of a times b.

    Width: the bits of both inputs.

    Args:
        a: edge of the first input.
        b: edge of the second input.
    """

    def __init__(self, a: Edge, b: Edge) -> None:
        super().__init__(Edge.of(a.scalar_step * b.scalar_step, *extreme_products(a, b)))

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class."""
        a, b = inputs
        return cls(a, b)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns int64 in the broadcast shape of the inputs."""
        return a * b


class IntegerSquare(IntegerMul):
    """Square: y = x x, a product whose operands are the same codes.

    Width: twice the bits of the input, never below zero.

    Args:
        read: edge of the input.
    """

    def __init__(self, read: Edge) -> None:
        low, high = sorted((read.low**2, read.high**2))
        edge = replace(read, step=read.step**2, divisor=read.divisor**2, high=high)
        low = 0 if read.low < 0 < read.high else low
        IntegerOperator.__init__(self, replace(edge, low=low))

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
            ConfigError: for powers other than 2.
        """
        if len(inputs) != 1 or call.arguments not in ({}, {"exponent": 2}):
            raise ConfigError(
                "expected the exponent 2; write other powers as products, such as x * x * x"
            )
        return cls(inputs[0])


class IntegerScale(IntegerOperator):
    """Product with a constant: y = x m, where the float32 constant is m 2^e for an odd m.

    The exponent becomes a part of the step, so that powers of two have no cost.

    Width: the bits of the input and those of m, at most 24.

    Args:
        read: edge of the input.
        factor: the constant; it is rounded to float32, as in torch.
    """

    def __init__(self, read: Edge, factor: float) -> None:
        fraction, exponent = math.frexp(torch.tensor(factor, dtype=torch.float32).item())
        whole = int(fraction * 2**SIGNIFICAND_BITS)
        if not math.isfinite(factor) or not whole:
            raise ConfigError(f"IntegerScale: expected a finite nonzero factor, got {factor}.")
        zeros = (whole & -whole).bit_length() - 1
        self_factor = whole >> zeros
        ends = sorted((read.low * self_factor, read.high * self_factor))
        step = read.step * 2.0 ** (exponent - SIGNIFICAND_BITS + zeros)
        super().__init__(replace(read, step=step, low=ends[0], high=ends[1]))
        self.factor = self_factor

    def forward(self, codes: Tensor) -> Tensor:
        """Returns int64 in the shape of `codes`."""
        return codes * self.factor
