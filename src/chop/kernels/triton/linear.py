"""Multiplication by packed weights that are decoded on the fly: y = x W^T + b.

Bytes moved per weight: b/8 + 1/k for a code of b bits and its share of a scale. That is 1.03 for
MXINT8 and 0.53 for MXINT4, compared with 2 for bfloat16. For one row the lower bound is set by
memory bandwidth: N K (b/8 + 1/k)/B seconds at B bytes per second, at most 1.94 and 3.76 times as
fast as bfloat16. The kernel is meant for one row; for more, decoding the weight first is faster.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from chop.errors import ConfigError
from chop.formats import Encoded, NumberFormat
from chop.kernels.triton.decode import decode_blocks, get_rule
from chop.kernels.triton.elements import FLOAT32_MAX, load_float, store_float, stored

OUTPUTS, DEPTH, WARPS = 4, 1024, 4  # of a program: its outputs, and the columns it takes at a time
MAX_LANES = 256


@triton.jit
def decode_tile(
    codes,
    scales,
    output,
    block,
    outputs,
    columns,
    blocks_per_row,
    block_size,
    RULE: tl.constexpr,
    LANES: tl.constexpr,
):
    """Decodes weight rows `output` in blocks `block` to (outputs, blocks * LANES)."""
    tile: tl.constexpr = output.shape[0] * block.shape[0]
    row, place = output.to(tl.int64)[:, None], block[None, :]
    column = tl.broadcast_to(place * block_size, (output.shape[0], block.shape[0]))
    is_block = (row < outputs) & (place < blocks_per_row)
    values = decode_blocks(
        codes,
        scales,
        tl.reshape(row * blocks_per_row + place, (tile,)),
        tl.reshape(row * columns + column, (tile,)),
        tl.reshape(column, (tile,)),
        tl.reshape(is_block, (tile,)),
        columns,
        block_size,
        RULE,
        FLOAT32_MAX,
        LANES,
    )
    return tl.reshape(values, (output.shape[0], block.shape[0] * LANES))


@triton.jit
def get_columns(block, block_size, columns, RULE: tl.constexpr, LANES: tl.constexpr):
    """Returns the columns of the blocks' lanes, (blocks * LANES,), and a mask of valid lanes."""
    lane = tl.arange(0, LANES)[None, :] + tl.zeros_like(block)[:, None]
    lane = tl.reshape(lane, (block.shape[0] * LANES,))
    column = tl.reshape(
        block[:, None] * block_size + tl.arange(0, LANES)[None, :], (block.shape[0] * LANES,)
    )
    # Before Triton 3.7, hints accept a constant but not a field of a constant.
    ALIGNMENT: tl.constexpr = RULE.alignment
    lane = tl.max_contiguous(tl.multiple_of(lane, ALIGNMENT), ALIGNMENT)
    column = tl.max_contiguous(tl.multiple_of(column, ALIGNMENT), ALIGNMENT)
    return column, (lane < block_size) & (column < columns)


@triton.jit
def product_of_rows(
    x,
    codes,
    scales,
    bias,
    y,
    outputs,
    columns,
    blocks_per_row,
    block_size,
    RULE: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCKS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Computes several outputs of one row with float32 sums."""
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.program_id(1).to(tl.int64)
    # Each lane has its own sum, so that lanes are added once and not in every block.
    total = tl.zeros((OUTPUTS, BLOCKS * LANES), tl.float32)
    for begin in range(0, blocks_per_row, BLOCKS):
        block = begin + tl.arange(0, BLOCKS)
        weight = decode_tile(
            codes, scales, output, block, outputs, columns, blocks_per_row, block_size, RULE, LANES
        )
        column, is_there = get_columns(block, block_size, columns, RULE, LANES)
        total += weight * load_float(x + row * columns + column, is_there)[None, :]
    store_outputs(tl.sum(total, axis=1), bias, y + row * outputs + output, output, output < outputs)


@triton.jit
def store_outputs(total, bias, y, output, is_there):
    """Adds the bias, if any, and stores the outputs."""
    if bias is not None:
        total += load_float(bias + output, is_there)
    store_float(y, total, is_there)


def linear(
    x: Tensor, weight: Encoded, number_format: NumberFormat, bias: Tensor | None = None
) -> Tensor:
    """Returns `F.linear(x, number_format.decode(weight), bias)`.

    Sums are float32, in another order than the reference's. They differ from the float32 product by
    at most `columns` 2^-23 times the sum of the magnitudes of the products. Each row reads the
    weight again.

    Args:
        x: (..., columns), float32, bfloat16 or float16, on the GPU.
        weight: (outputs, columns), result of `number_format.encode`.
        number_format: MXINT or MXFP of up to 8 bits, blocks of up to 256 along the columns.
        bias: (outputs,) in any of those dtypes.
    Returns: (..., outputs), in the dtype of `x`.

    Raises:
        ConfigError: if the format, block size or shapes are not supported.
    """
    rule, block_size = get_rule(weight, number_format)
    lanes = triton.next_power_of_2(block_size)
    if len(weight.shape) != 2 or x.shape[-1:] != weight.shape[1:] or lanes > MAX_LANES:
        raise ConfigError(
            f"expected x (..., columns), weight (outputs, columns) and blocks of up to {MAX_LANES};"
            f" got {tuple(x.shape)}, {tuple(weight.shape)} and {block_size}."
        )
    outputs, columns = weight.shape
    data = x.reshape(-1, columns).contiguous()
    rows = data.size(0)
    y = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y.view(*x.shape[:-1], outputs)
    sizes = (outputs, columns, triton.cdiv(columns, block_size), block_size)
    stored_bias = None if bias is None else stored(bias.contiguous())
    tensors = (stored(data), weight.codes, weight.scales, stored_bias, stored(y))
    blocks = max(DEPTH // lanes, 1)
    grid = (triton.cdiv(outputs, OUTPUTS), rows)
    # Fused multiply-adds are allowed, because these sums are not bit-identical anyway.
    product_of_rows[grid](
        *tensors, *sizes, rule, OUTPUTS, blocks, lanes, num_warps=WARPS, enable_fp_fusion=True
    )
    return y.view(*x.shape[:-1], outputs)
