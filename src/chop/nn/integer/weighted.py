"""Layers with weights: whole numbers of weight and bias, and how wide their sums become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from chop.nn.integer.base import NO_CALL, Call, IntegerOperator, IntegerOptions, check_width
from chop.nn.integer.edge import Edge, shift_between
from chop.nn.integer.parameters import ParameterCodes, parameter_codes
from chop.nn.quantized import QuantizedOperator

LARGEST_BIAS = 2**31 - 1
"""Of a bias in multiples of a product's step."""


@dataclass(frozen=True, eq=False)
class Weighted:
    """Whole numbers of a layer: acc = (sum x w) 2^shift + b.

    Attributes:
        weight: w, int64, outputs along the first axis.
        bias: b, int64 (outputs,).
        shift: how many bits finer the bias is than the products.
        bound: no sum of magnitudes of products is larger.
        out: the accumulator.
    """

    weight: Tensor
    bias: Tensor
    shift: int
    bound: int
    out: Edge


class WeightedOperator(IntegerOperator):
    """Sum of products of codes and weights: acc = (sum x w) 2^shift + b.

    If the steps of the product and the bias have the ratio of a power of two, the finer of them is
    the accumulator's: a finer bias shifts the sum, a coarser one is shifted; nothing is rounded.
    Otherwise the bias is rounded to a multiple of the product's step, and fits int32: a channel
    whose products are so fine that it does not, gets coarser weights.

    Width: each output lies between the sums over its weights of the smaller and of the larger of
    w low and w high, shifted, plus b: at most the bits of input and weight, ceil(log2 K) for K
    products, and one for the bias.

    Args:
        whole: weights, bias and accumulator.

    Source: Jacob et al. 2018, arXiv:1712.05877, equations 7 to 9.
    """

    axis: ClassVar[int] = -1
    weight: Tensor
    bias: Tensor

    def __init__(self, whole: Weighted) -> None:
        super().__init__(whole.out)
        self.register_buffer("weight", whole.weight)
        self.register_buffer("bias", whole.out.by_channel(whole.bias))
        self.shift, self.bound = whole.shift, whole.bound

    @classmethod
    def from_quantized(
        cls,
        module: nn.Module | None,
        inputs: Sequence[Edge],
        options: IntegerOptions,
        call: Call = NO_CALL,
    ) -> Self:
        """See the base class."""
        assert isinstance(module, QuantizedOperator)
        operator = cls(weighted(module, inputs[0], cls.axis))
        operator.take_settings(module)
        return operator

    def take_settings(self, module: nn.Module) -> None:
        """Takes over what else the layer has: strides and the like."""


def weighted(module: QuantizedOperator, read: Edge, axis: int) -> Weighted:
    """The whole numbers of a layer that reads an edge of one step.

    Args:
        module: with `weight` and `bias`.
        read: its input; 0 is among the codes, which padding needs.
        axis: of the outputs in its result, from the end.
    """
    weight = parameter_codes(module, "weight")
    bias = parameter_codes(module, "bias") if getattr(module, "bias", None) is not None else None
    outputs = weight.codes.size(0)
    step, shift = read.scalar_step * weight.step, 0
    if bias is None:
        codes = torch.zeros(outputs, dtype=torch.int64)
    else:
        finer = _finer_bits(step, bias.step)
        if finer is None:
            weight, codes = _bias_in_steps(weight, bias, read.scalar_step)
            step = read.scalar_step * weight.step
        else:
            shift, codes = max(finer, 0), _shifted(type(module).__name__, bias.codes, -finer)
            step = step * 2.0**-shift
    low, high = min(read.low, 0), max(read.high, 0)
    bound, low, high = _bounds(weight.codes, codes, shift, low, high)
    return Weighted(weight.codes, codes, shift, bound, Edge(step, axis, low, high))


def _finer_bits(products: Tensor, bias: Tensor) -> int | None:
    """f where the bias's step is the products' times 2^-f; None if they are no such powers."""
    if products.dim() or bias.dim():
        return None
    return shift_between(products.item(), bias.item())


def _shifted(where: str, codes: Tensor, zeros: int) -> Tensor:
    """Codes with zeros appended; none if `zeros` is below 1."""
    zeros = max(zeros, 0)
    check_width(f"{where}.bias", int(codes.min()) << zeros, int(codes.max()) << zeros)
    return codes << zeros


def _bias_in_steps(
    weight: ParameterCodes, bias: ParameterCodes, step: float
) -> tuple[ParameterCodes, Tensor]:
    """The bias in multiples of the products' steps, and weights coarse enough for it.

    Args:
        weight: the weights.
        bias: the bias.
        step: of the inputs.
    """
    values = bias.codes.double() * bias.by_row
    least = values.abs() / (step * LARGEST_BIAS)
    if bool((least > weight.step).any()):
        coarse = torch.maximum(least, weight.step.expand_as(least))
        wide = replace(weight, step=coarse)
        codes = (weight.codes.double() * weight.by_row / wide.by_row).round().long()
        weight = replace(wide, codes=codes)
    codes = (values / (step * weight.step)).round().long()
    return weight, codes.clamp(-LARGEST_BIAS, LARGEST_BIAS)


def _bounds(weight: Tensor, bias: Tensor, shift: int, low: int, high: int) -> tuple[int, int, int]:
    """The largest sum of magnitudes, the smallest accumulator, and the largest."""
    rows = weight.reshape(weight.size(0), -1)
    ups, downs = rows.clamp(min=0).sum(1).tolist(), rows.clamp(max=0).sum(1).tolist()
    sums = list(zip(ups, downs, bias.tolist(), strict=True))
    bound = max(((up - down) * max(-low, high) for up, down, _ in sums), default=0)
    lows = [((up * low + down * high) << shift) + b for up, down, b in sums]
    highs = [((up * high + down * low) << shift) + b for up, down, b in sums]
    return bound, min(lows, default=0), max(highs, default=0)
