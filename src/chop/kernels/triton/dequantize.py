"""Decoding of packed MXINT and MXFP in one pass, bit-identical to `NumberFormat.decode`.

Bytes moved per element: b/8 + 1/k to read a code of b bits and its share of a scale, and 4
(float32) or 2 (bfloat16, float16) to write. The lower bound is set by memory bandwidth:
N (b/8 + 1/k + 2)/B seconds for N numbers to bfloat16 at B bytes per second.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from chop.formats import Encoded, NumberFormat
from chop.kernels.triton.decode import decode_blocks, get_lanes, get_rule
from chop.kernels.triton.elements import store_float, stored
from chop.kernels.triton.rules import BlockLayout

TILE = 2048  # elements of a program


@triton.jit
def decode_rows(
    codes,
    scales,
    y,
    count,
    row_size,
    blocks_per_row,
    block_size,
    RULE: tl.constexpr,
    LIMIT: tl.constexpr,
    BLOCKS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Decodes `count` blocks of rows of `row_size`; `LANES` is at least `block_size`."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    column = block % blocks_per_row * block_size
    first = block // blocks_per_row * row_size + column
    is_block = block < count
    values = decode_blocks(
        codes, scales, block, first, column, is_block, row_size, block_size, RULE, LIMIT, LANES
    )
    is_there = get_lanes(column[:, None], is_block, row_size, block_size, LANES)
    store_float(y + first[:, None] + tl.arange(0, LANES)[None, :], values, is_there)


def dequantize(encoded: Encoded, number_format: NumberFormat) -> Tensor:
    """Returns `number_format.decode(encoded)`.

    Args:
        encoded: result of `number_format.encode` on the GPU; float32, bfloat16 or float16.
        number_format: MXINT or MXFP of up to 8 bits, in blocks along the last axis.

    Raises:
        ConfigError: if the format is not supported.
    """
    rule, block_size = get_rule(encoded, number_format)
    y = torch.empty(encoded.shape, dtype=encoded.dtype, device=encoded.codes.device)
    if y.numel() == 0:
        return y
    layout = BlockLayout.of(encoded.shape, block_size)
    lanes = triton.next_power_of_2(block_size)
    blocks = max(TILE // lanes, 1)
    decode_rows[(triton.cdiv(layout.blocks, blocks),)](
        encoded.codes,
        encoded.scales,
        stored(y),
        *layout,
        rule,
        torch.finfo(y.dtype).max,
        blocks,
        lanes,
        enable_fp_fusion=False,
    )
    return y
