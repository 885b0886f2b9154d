"""Fused softmax along the last axis, and its gradient.

Softmax of (M, N) in five PyTorch operations reads 5MN + 2M numbers and writes 3MN + 2M. The fused
kernel keeps a row on the chip and moves 2MN numbers. Its lower bound is 2MN b/B seconds for numbers
of b bytes at B bytes per second, four times less. Longer rows are read twice, first for the maximum
and the sum, then for the result: 3MN. The gradient reads y and dy and writes dx: 3MN.

Sources: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax",
arXiv:1805.02867; the gradient is y (dy - sum(y dy)).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from chop.errors import ConfigError
from chop.kernels.triton.elements import load_float, store_float, stored

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TILE = 4096  # elements of a program: so many short rows, or one long one
LONGEST_ROW = 16384  # 16 warps hold it, 32 numbers to a thread
STAGES = 3  # reads that are under way at a time, in loops over a row
MINUS_INFINITY = tl.constexpr(float("-inf"))


@triton.jit
def get_tile(count, columns, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Returns the offsets of a program's rows, (ROWS, BLOCK_SIZE), and a mask of valid ones."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_SIZE)
    is_there = (row < count)[:, None] & (column < columns)[None, :]
    return row[:, None] * columns + column[None, :], is_there


@triton.jit
def get_part(begin, columns, BLOCK_SIZE: tl.constexpr):
    """Returns the offsets of a part of the program's single row, and a mask of valid ones."""
    column = begin + tl.arange(0, BLOCK_SIZE)
    return tl.program_id(0).to(tl.int64) * columns + column, column < columns


@triton.jit
def softmax_rows(x, y, count, columns, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Computes the softmax of `ROWS` rows, each of which fits in `BLOCK_SIZE`."""
    place, is_there = get_tile(count, columns, ROWS, BLOCK_SIZE)
    values = tl.where(is_there, load_float(x + place, is_there), MINUS_INFINITY)
    exponentials = tl.exp(values - tl.max(values, axis=1)[:, None])
    store_float(y + place, exponentials / tl.sum(exponentials, axis=1)[:, None], is_there)


@triton.jit
def softmax_long_row(x, y, columns, BLOCK_SIZE: tl.constexpr, STAGES: tl.constexpr):
    """Computes the softmax of one row in parts, rescaling the sum at each new maximum."""
    largest = tl.full((), MINUS_INFINITY, tl.float32)
    total = tl.zeros((), tl.float32)
    for begin in tl.range(0, columns, BLOCK_SIZE, num_stages=STAGES):
        place, is_there = get_part(begin, columns, BLOCK_SIZE)
        values = tl.where(is_there, load_float(x + place, is_there), MINUS_INFINITY)
        maximum = tl.maximum(largest, tl.max(values, axis=0))
        # Infinity minus infinity would be NaN as long as all numbers are -infinity.
        shift = tl.where(maximum == MINUS_INFINITY, 0.0, maximum)
        total = total * tl.exp(largest - shift) + tl.sum(tl.exp(values - shift), axis=0)
        largest = maximum
    for begin in tl.range(0, columns, BLOCK_SIZE, num_stages=STAGES):
        place, is_there = get_part(begin, columns, BLOCK_SIZE)
        values = load_float(x + place, is_there)
        store_float(y + place, tl.exp(values - largest) / total, is_there)


@triton.jit
def gradient_rows(y, dy, dx, count, columns, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Computes the gradient of `ROWS` rows, each of which fits in `BLOCK_SIZE`."""
    place, is_there = get_tile(count, columns, ROWS, BLOCK_SIZE)
    outputs, gradients = load_float(y + place, is_there), load_float(dy + place, is_there)
    mean = tl.sum(outputs * gradients, axis=1)[:, None]
    store_float(dx + place, outputs * (gradients - mean), is_there)


@triton.jit
def gradient_long_row(y, dy, dx, columns, BLOCK_SIZE: tl.constexpr, STAGES: tl.constexpr):
    """Computes the gradient of one row in parts."""
    mean = tl.zeros((), tl.float32)
    for begin in tl.range(0, columns, BLOCK_SIZE, num_stages=STAGES):
        place, is_there = get_part(begin, columns, BLOCK_SIZE)
        mean += tl.sum(load_float(y + place, is_there) * load_float(dy + place, is_there), axis=0)
    for begin in tl.range(0, columns, BLOCK_SIZE, num_stages=STAGES):
        place, is_there = get_part(begin, columns, BLOCK_SIZE)
        outputs, gradients = load_float(y + place, is_there), load_float(dy + place, is_there)
        store_float(dx + place, outputs * (gradients - mean), is_there)


class Softmax(torch.autograd.Function):
    """Autograd function along the last axis of contiguous tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: D102
        y = torch.empty_like(x)
        _launch(softmax_rows, softmax_long_row, x, y)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # noqa: D102
        (y,) = ctx.saved_tensors
        dx = torch.empty_like(y)
        _launch(gradient_rows, gradient_long_row, y, dy.contiguous(), dx)
        return dx


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Returns `torch.softmax(x, dim)` with float32 sums.

    Args:
        x: any shape of at least one axis, float32, bfloat16 or float16, on the GPU.
        dim: axis; any but the last is moved there first, which costs two more passes.
    Returns: tensor of the shape and dtype of `x`.

    Raises:
        ConfigError: if the dtype or axis is not supported.
    """
    if x.dtype not in DTYPES or not -x.ndim <= dim < x.ndim:
        raise ConfigError(
            f"softmax: expected float32, bfloat16 or float16 and an axis of the tensor, got "
            f"{x.dtype} of shape {tuple(x.shape)} and dim={dim}."
        )
    y: Tensor = Softmax.apply(x.movedim(dim, -1).contiguous())
    return y.movedim(-1, dim)


def _launch(rows_kernel: Any, long_row_kernel: Any, *tensors: Tensor) -> None:
    """Launches one program per few short rows, or per long row."""
    columns = tensors[0].size(-1)
    if tensors[0].numel() == 0:
        return
    count, parts = tensors[0].numel() // columns, [stored(x) for x in tensors]
    if columns > LONGEST_ROW:
        long_row_kernel[(count,)](*parts, columns, TILE, STAGES, num_warps=8, enable_fp_fusion=True)
        return
    block_size = triton.next_power_of_2(columns)
    rows = max(TILE // block_size, 1)
    grid, num_warps = (triton.cdiv(count, rows),), min(max(rows * block_size // 512, 4), 16)
    sizes = (count, columns, rows, block_size)
    rows_kernel[grid](*parts, *sizes, num_warps=num_warps, enable_fp_fusion=True)
