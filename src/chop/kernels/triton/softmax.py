"""Softmax along the last axis with one read and one write of every number, and its gradient.

Written in five operations of PyTorch, softmax of (M, N) reads 5MN + 2M numbers and writes
3MN + 2M. Here a row stays on the chip between its reading and its writing, so 2MN numbers are
moved: the floor is 2MN b/B seconds for numbers of b bytes at B bytes a second, four times less.
A row that is too long for that is read once for its largest number and its sum, found together,
and once for its result: 3MN. The gradient reads y and dy and writes dx: 3MN.

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
    """Places of a program's rows, (ROWS, BLOCK_SIZE), and which of them are there."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_SIZE)
    is_there = (row < count)[:, None] & (column < columns)[None, :]
    return row[:, None] * columns + column[None, :], is_there


@triton.jit
def get_part(begin, columns, BLOCK_SIZE: tl.constexpr):
    """Places of a part of the program's one row, and which of them are there."""
    column = begin + tl.arange(0, BLOCK_SIZE)
    return tl.program_id(0).to(tl.int64) * columns + column, column < columns


@triton.jit
def softmax_rows(x, y, count, columns, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Softmax of `ROWS` rows, each of which fits in `BLOCK_SIZE`."""
    place, is_there = get_tile(count, columns, ROWS, BLOCK_SIZE)
    values = tl.where(is_there, load_float(x + place, is_there), MINUS_INFINITY)
    exponentials = tl.exp(values - tl.max(values, axis=1)[:, None])
    store_float(y + place, exponentials / tl.sum(exponentials, axis=1)[:, None], is_there)


@triton.jit
def softmax_long_row(x, y, columns, BLOCK_SIZE: tl.constexpr, STAGES: tl.constexpr):
    """Softmax of one row in parts; the sum is rescaled whenever a larger number is found."""
    largest = tl.full((), MINUS_INFINITY, tl.float32)
    total = tl.zeros((), tl.float32)
    for begin in tl.range(0, columns, BLOCK_SIZE, num_stages=STAGES):
        place, is_there = get_part(begin, columns, BLOCK_SIZE)
        values = tl.where(is_there, load_float(x + place, is_there), MINUS_INFINITY)
        found = tl.maximum(largest, tl.max(values, axis=0))
        # Infinity minus infinity would be NaN where nothing has been found yet.
        shift = tl.where(found == MINUS_INFINITY, 0.0, found)
        total = total * tl.exp(largest - shift) + tl.sum(tl.exp(values - shift), axis=0)
        largest = found
    for begin in tl.range(0, columns, BLOCK_SIZE, num_stages=STAGES):
        place, is_there = get_part(begin, columns, BLOCK_SIZE)
        values = load_float(x + place, is_there)
        store_float(y + place, tl.exp(values - largest) / total, is_there)


@triton.jit
def gradient_rows(y, dy, dx, count, columns, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """The gradient of `ROWS` rows, each of which fits in `BLOCK_SIZE`."""
    place, is_there = get_tile(count, columns, ROWS, BLOCK_SIZE)
    outputs, gradients = load_float(y + place, is_there), load_float(dy + place, is_there)
    mean = tl.sum(outputs * gradients, axis=1)[:, None]
    store_float(dx + place, outputs * (gradients - mean), is_there)


@triton.jit
def gradient_long_row(y, dy, dx, columns, BLOCK_SIZE: tl.constexpr, STAGES: tl.constexpr):
    """The gradient of one row in parts."""
    mean = tl.zeros((), tl.float32)
    for begin in tl.range(0, columns, BLOCK_SIZE, num_stages=STAGES):
        place, is_there = get_part(begin, columns, BLOCK_SIZE)
        mean += tl.sum(load_float(y + place, is_there) * load_float(dy + place, is_there), axis=0)
    for begin in tl.range(0, columns, BLOCK_SIZE, num_stages=STAGES):
        place, is_there = get_part(begin, columns, BLOCK_SIZE)
        outputs, gradients = load_float(y + place, is_there), load_float(dy + place, is_there)
        store_float(dx + place, outputs * (gradients - mean), is_there)


class Softmax(torch.autograd.Function):
    """Both directions, along the last axis of contiguous tensors."""

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
    """`torch.softmax(x, dim)`; sums in float32.

    Args:
        x: any shape of at least one axis, float32, bfloat16 or float16, on the GPU.
        dim: the axis; any but the last is moved there first, which costs two more passes.
    Returns: shape and dtype of `x`.

    Raises:
        ConfigError: another dtype, or no such axis.
    """
    if x.dtype not in DTYPES or not -x.ndim <= dim < x.ndim:
        raise ConfigError(
            f"softmax: expected float32, bfloat16 or float16 and an axis of the tensor, got "
            f"{x.dtype} of shape {tuple(x.shape)} and dim={dim}."
        )
    y: Tensor = Softmax.apply(x.movedim(dim, -1).contiguous())
    return y.movedim(-1, dim)


def _launch(rows_kernel: Any, long_row_kernel: Any, *tensors: Tensor) -> None:
    """One program per few short rows, or per long one."""
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
