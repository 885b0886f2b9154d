"""Custom operators that replace number formats in a graph for export.

The torch implementations are references for the results of ONNX runtimes.
"""

from __future__ import annotations

import torch
from torch import Tensor

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
QONNX, QUANT, BIPOLAR = "qonnx.custom_op.general", "Quant", "BipolarQuant"
"""Domain and operators of QONNX."""
MIDDLE = 8
"""Code of 0 among 4-bit codes."""
ZERO_POINT, LARGEST_CODE = 128, 255
"""Code of 0 among signed numbers, and largest code."""


@torch.library.custom_op("chop::onnx_round", mutates_args=())
def onnx_round(x: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    """Computes QuantizeLinear and DequantizeLinear: s k, k nearest to x/s, ties to even.

    ONNX stores the codes as uint8, with a zero point of 128 if `low` is negative. Only activations
    of this kind are multiplied by int8 weights on every processor.

    Args:
        x: any shape, float32.
        scale: float32 ().
        low: smallest k, at least -128.
        high: largest k.
    """
    return (x / scale).round().clamp(low, high) * scale


@onnx_round.register_fake
def _(x: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("chop::onnx_dequantize", mutates_args=())
def onnx_dequantize(codes: Tensor, scale: Tensor, zero_point: Tensor, axis: int) -> Tensor:
    """Computes DequantizeLinear: (codes - zero_point) times scale.

    Args:
        codes: any shape, int8, uint8 or int32.
        scale: float32 (), or (n,) for each index of `axis`.
        zero_point: shape of `scale`, dtype of `codes`.
        axis: ignored for a single scale.
    """
    shape = [1] * codes.dim()
    if scale.dim():
        shape[axis] = -1
    return (codes.to(scale.dtype) - zero_point.view(shape)) * scale.view(shape)


@onnx_dequantize.register_fake
def _(codes: Tensor, scale: Tensor, zero_point: Tensor, axis: int) -> Tensor:
    return torch.empty_like(codes, dtype=scale.dtype)


@torch.library.custom_op("chop::onnx_decode", mutates_args=())
def onnx_decode(codes: Tensor, steps: Tensor, offsets: Tensor | None, columns: int) -> Tensor:
    """Decodes integers to a matrix: each is multiplied by its group's step, plus its offset.

    Args:
        codes: int8 (rows, groups, group); the last group of a row may end with padding.
        steps: float32 (rows, groups, 1) or (1, 1, 1).
        offsets: shape of `steps`, or None.
        columns: columns of the matrix.
    """
    values = codes.to(steps.dtype) * steps
    values = values if offsets is None else values + offsets
    return values.flatten(1)[:, :columns].contiguous()


@onnx_decode.register_fake
def _(codes: Tensor, steps: Tensor, offsets: Tensor | None, columns: int) -> Tensor:
    return steps.new_empty(codes.size(0), columns)


def _four_bits(codes: Tensor, scales: Tensor) -> Tensor:
    """Decodes packed codes to float32 (rows, blocks x block).

    Args:
        codes: uint8 (rows, bytes), two codes per byte, the first in the low bits.
        scales: float32 (rows, blocks).
    """
    numbers = torch.stack([codes & 15, codes >> 4], -1).view(*scales.shape, -1).float() - MIDDLE
    return (numbers * scales.unsqueeze(-1)).flatten(1)


@torch.library.custom_op("chop::onnx_matmul_4bit", mutates_args=())
def onnx_matmul_4bit(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Computes MatMulNBits: x times the transpose of a matrix of 4-bit codes, in float32.

    Args:
        x: float32 (..., columns).
        codes: uint8 (rows, blocks, block/2), with padding in the last block; 8 is the code of 0.
        scales: float32 (rows, blocks).
    """
    weight = _four_bits(codes.flatten(1), scales)[:, : x.size(-1)]
    return x @ weight.T


@onnx_matmul_4bit.register_fake
def _(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], codes.size(0))


@torch.library.custom_op("chop::onnx_gather_4bit", mutates_args=())
def onnx_gather_4bit(codes: Tensor, rows: Tensor, scales: Tensor) -> Tensor:
    """Computes GatherBlockQuantized: rows of a matrix of 4-bit codes, in float32.

    Args:
        codes: uint8 (all rows, columns/2); 8 is the code of 0.
        rows: int64, any shape.
        scales: float32 (all rows, blocks).
    """
    return _four_bits(codes, scales)[rows]


@onnx_gather_4bit.register_fake
def _(codes: Tensor, rows: Tensor, scales: Tensor) -> Tensor:
    return scales.new_empty(*rows.shape, 2 * codes.size(1))


@torch.library.custom_op("chop::qonnx_quant", mutates_args=())
def qonnx_quant(x: Tensor, scale: Tensor, low: int, high: int, floors: bool) -> Tensor:
    """Computes QONNX's Quant: s k, k nearest to x/s with ties to even, or below x/s.

    Args:
        x: any shape, float32.
        scale: float32, broadcastable to `x`.
        low: smallest k: 0, or -`high`, or one less.
        high: largest k, one less than a power of two.
        floors: rounds down instead of to nearest.
    """
    steps = (x / scale).clamp(low, high)
    return (steps.floor() if floors else steps.round()) * scale


@qonnx_quant.register_fake
def _(x: Tensor, scale: Tensor, low: int, high: int, floors: bool) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("chop::qonnx_bipolar", mutates_args=())
def qonnx_bipolar(x: Tensor, scale: Tensor) -> Tensor:
    """Computes QONNX's BipolarQuant: s for x >= 0, otherwise -s.

    Args:
        x: any shape, float32.
        scale: float32, broadcastable to `x`.
    """
    return torch.where(x >= 0, scale, -scale)


@qonnx_bipolar.register_fake
def _(x: Tensor, scale: Tensor) -> Tensor:
    return torch.empty_like(x)


def written_ends(low: int, high: int) -> tuple[int, int]:
    """Returns the smallest and largest k of the written codes, which may need a Clip."""
    zero = ZERO_POINT if low < 0 else 0
    return (low, high) if high + zero < LARGEST_CODE else (-zero, LARGEST_CODE - zero)
