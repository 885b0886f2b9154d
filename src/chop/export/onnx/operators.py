"""Custom operators that a QDQ graph has instead of roundings, and their ONNX.

Their torch forms are references: what an ONNX runtime computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

OPSET = 18
QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
ZERO_POINT, LARGEST_CODE = 128, 255
"""Of the codes of signed numbers; of all codes."""


@torch.library.custom_op("chop::onnx_round", mutates_args=())
def onnx_round(x: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    """QuantizeLinear, DequantizeLinear: s k, k nearest to x/s in `low` ... `high`, ties to even.

    In ONNX the codes are uint8, and 128 stands for 0 where `low` is negative: the one kind of
    activation that runtimes multiply by int8 weights on every processor.

    Args:
        x: any shape, float32.
        scale: float32 ().
        low: the smallest k, at least -128.
        high: the largest k.
    """
    return (x / scale).round().clamp(low, high) * scale


@onnx_round.register_fake
def _(x: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("chop::onnx_dequantize", mutates_args=())
def onnx_dequantize(codes: Tensor, scale: Tensor, zero_point: Tensor, axis: int) -> Tensor:
    """DequantizeLinear: (codes - zero_point) times scale.

    Args:
        codes: any shape, int8, uint8 or int32.
        scale: float32 (), or (n,) for each index of `axis`.
        zero_point: shape of `scale`, dtype of `codes`.
        axis: ignored where there is one scale.
    """
    shape = [1] * codes.dim()
    if scale.dim():
        shape[axis] = -1
    return (codes.to(scale.dtype) - zero_point.view(shape)) * scale.view(shape)


@onnx_dequantize.register_fake
def _(codes: Tensor, scale: Tensor, zero_point: Tensor, axis: int) -> Tensor:
    return torch.empty_like(codes, dtype=scale.dtype)


def written_ends(low: int, high: int) -> tuple[int, int]:
    """The smallest and the largest k of what is written: all that the codes have, or a Clip."""
    zero = ZERO_POINT if low < 0 else 0
    return (low, high) if high + zero < LARGEST_CODE else (-zero, LARGEST_CODE - zero)


def translations() -> dict[Any, Callable[..., Any]]:
    """Translation table for the exporter: ONNX of each custom operator."""
    from onnx import TensorProto, helper
    from onnxscript import opset18

    op: Any = opset18

    def rounded(x: Any, scale: Any, low: int, high: int) -> Any:
        zero = ZERO_POINT if low < 0 else 0
        if high + zero < LARGEST_CODE:
            ends = (op.Mul(scale, op.Constant(value_float=float(end))) for end in (low, high))
            x = op.Clip(x, *ends)
        tensor = helper.make_tensor("zero_point", TensorProto.UINT8, [], [zero])
        point = op.Constant(value=tensor)
        return op.DequantizeLinear(op.QuantizeLinear(x, scale, point), scale, point)

    def dequantized(codes: Any, scale: Any, zero_point: Any, axis: int) -> Any:
        return op.DequantizeLinear(codes, scale, zero_point, axis=axis)

    return {
        torch.ops.chop.onnx_round.default: rounded,
        torch.ops.chop.onnx_dequantize.default: dequantized,
    }
