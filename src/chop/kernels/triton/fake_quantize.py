"""Fake-quantize in one pass, bit-identical to `NumberFormat.round`.

Bytes moved per element: 8 in float32, 4 in bfloat16 and float16 (one read and one write). The lower
bound is set by memory bandwidth: 8 N/B seconds for N float32 numbers at B bytes per second. Blocks
along other axes than the last are gathered first, which costs two more passes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from chop.formats import NumberFormat
from chop.kernels.plan import get_layout
from chop.kernels.triton.elements import (
    FRACTION_BITS,
    INFINITE,
    bit_width,
    bits_to_float,
    clamp,
    load_float,
    round_element,
    store_float,
    stored,
    times_power_of_two,
)
from chop.kernels.triton.rules import BlockLayout, block_size_along_rows, element_rule, scale_rule

TILE = 2048  # elements of a program


@triton.jit
def round_elements(x, y, count, ELEMENT: tl.constexpr, LIMIT: tl.constexpr, TILE: tl.constexpr):
    """Rounds `count` numbers element by element and clamps results to `LIMIT`."""
    index = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    is_there = index < count
    rounded = round_element(load_float(x + index, is_there), ELEMENT)
    store_float(y + index, clamp(rounded, -LIMIT, LIMIT), is_there)


@triton.jit
def round_blocks(
    x,
    y,
    count,
    row_size,
    blocks_per_row,
    block_size,
    ELEMENT: tl.constexpr,
    SCALE: tl.constexpr,
    LIMIT: tl.constexpr,
    BLOCKS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Rounds `count` blocks of rows of `row_size`; `LANES` is at least `block_size`."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    column = (block % blocks_per_row * block_size)[:, None] + tl.arange(0, LANES)[None, :]
    in_block = (tl.arange(0, LANES) < block_size)[None, :] & (block < count)[:, None]
    is_there = in_block & (column < row_size)
    index = (block // blocks_per_row * row_size)[:, None] + column
    values = load_float(x + index, is_there)
    exponent, has_non_finite = shared_exponent(values, SCALE)
    scaled = times_power_of_two(values, -exponent[:, None])
    if ELEMENT.core == "log":  # has no zero: numbers that underflow keep their sign
        tiny = tl.where(values < 0, -(2.0**-126), 2.0**-126)
        scaled = tl.where((scaled == 0) & (values != 0), tiny, scaled)
    rounded = times_power_of_two(round_element(scaled, ELEMENT), exponent[:, None])
    rounded = clamp(rounded, -LIMIT, LIMIT)
    if SCALE.has_nan:
        rounded = tl.where(has_non_finite[:, None], float("nan"), rounded)
    store_float(y + index, rounded, is_there)


@triton.jit
def shared_exponent(values, SCALE: tl.constexpr):
    """Returns the shared exponent of each row, and a mask of rows with NaN or infinity."""
    bits = bit_width(tl.abs(values))
    # As integers, bits of magnitudes sort like the numbers, with infinity and NaN at the top.
    largest = tl.max(bits, axis=1)
    has_non_finite = largest >= INFINITE
    # If scales can be NaN, a row with NaN or infinity becomes NaN, regardless of its exponent.
    if not SCALE.has_nan:
        largest = tl.max(tl.where(bits < INFINITE, bits, 0), axis=1)
    amax = bits_to_float(largest)
    # Subnormal numbers have no exponent field until they are scaled by 2^24.
    is_tiny = amax < 2.0**-126
    normal = bit_width(tl.where(is_tiny, amax * 2.0**24, amax))
    exponent = ((normal + SCALE.rounding_bias) >> FRACTION_BITS) - 127 + SCALE.offset
    exponent = tl.where(is_tiny, exponent - 24, exponent)
    return clamp(exponent, SCALE.lowest, SCALE.highest), has_non_finite


def fake_quantize(x: Tensor, number_format: NumberFormat, out: Tensor) -> None:
    """Writes `number_format.round(x)` to `out`.

    Args:
        x: any shape, float32, bfloat16 or float16, on the GPU.
        number_format: format for which `rules.takes` is True.
        out: tensor like `x`; may be `x` itself.
    """
    if x.numel() == 0:
        return
    number_format = number_format.fitted(x)
    x = x.contiguous()
    y = out if out.is_contiguous() else torch.empty_like(x)
    layout = get_layout(number_format)
    assert layout is not None
    if layout.scaling is None:
        _round_elements(x, y, number_format)
    elif (block_size := block_size_along_rows(number_format, x.ndim)) is not None:
        _round_rows(x, y, number_format, block_size)
    else:
        y = layout.groups.split(x).contiguous()
        _round_rows(y, y, number_format, y.size(-1))
        y = layout.groups.join(y, x.shape)
    if y is not out:
        out.copy_(y)


def _round_elements(x: Tensor, y: Tensor, number_format: NumberFormat) -> None:
    # A fused multiply-add rounds once where the reference rounds twice, so fusion is off.
    round_elements[(triton.cdiv(x.numel(), TILE),)](
        stored(x),
        stored(y),
        x.numel(),
        element_rule(number_format),
        _limit(number_format, x.dtype),
        TILE,
        enable_fp_fusion=False,
    )


def _round_rows(x: Tensor, y: Tensor, number_format: NumberFormat, block_size: int) -> None:
    layout = BlockLayout.of(x.shape, block_size)
    lanes = triton.next_power_of_2(block_size)
    blocks = max(TILE // lanes, 1)
    round_blocks[(triton.cdiv(layout.blocks, blocks),)](
        stored(x),
        stored(y),
        *layout,
        element_rule(number_format),
        scale_rule(number_format),
        _limit(number_format, x.dtype),
        blocks,
        lanes,
        enable_fp_fusion=False,
    )


def _limit(number_format: NumberFormat, dtype: torch.dtype) -> float:
    """Returns the largest finite magnitude of the results."""
    layout = get_layout(number_format)
    becomes_infinite = layout is not None and layout.overflow == "infinity"
    return float("inf") if becomes_infinite else torch.finfo(dtype).max
