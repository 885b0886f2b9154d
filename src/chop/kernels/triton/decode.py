"""Decoding of blocks in Triton, shared by the kernels on packed weights."""

import math

import triton
import triton.language as tl

from chop.errors import ConfigError
from chop.formats import Encoded, NumberFormat
from chop.kernels.triton.elements import FRACTION_BITS, SIGN, WHOLE, bit_width, bits_to_float
from chop.kernels.triton.rules import CodeRule, block_size_along_rows, code_rule, decodes

MAX_ALIGNMENT = 16  # bytes of the widest load
NAN_SCALE = tl.constexpr(255)
BITS_OF_WHOLE = tl.constexpr(0x4B000000)
SMALLEST_SCALE = tl.constexpr(0x00400000)  # 2^-127, which is subnormal


@triton.jit
def decode_blocks(
    codes,
    scales,
    block,
    first,
    column,
    is_block,
    row_size,
    block_size,
    RULE: tl.constexpr,
    LIMIT: tl.constexpr,
    LANES: tl.constexpr,
):
    """Decodes blocks of codes.

    Args:
        codes: pointer to bytes of bit-packed codes.
        scales: pointer to E8M0 bytes.
        block: (blocks,) block indices.
        first: (blocks,) indices of their first codes.
        column: (blocks,) first columns of the blocks; a block ends with its row.
        is_block: (blocks,) False for blocks that are not read.
        row_size: elements of a row.
        block_size: elements of a block.
        RULE: a `CodeRule`.
        LIMIT: largest finite magnitude of the result.
        LANES: power of two, at least `block_size`.
    Returns: (blocks, LANES) float32, zeros beyond a block's end, unless the block is NaN.
    """
    exponent = tl.load(scales + block, mask=is_block, other=127).to(tl.int32)
    scale = bits_to_float(tl.where(exponent == 0, SMALLEST_SCALE, exponent << FRACTION_BITS))
    scale = tl.where(exponent == NAN_SCALE, float("nan"), scale)
    if RULE.is_integer:
        scale = scale * RULE.factor  # a power of two, and at least 2^-149 stays one
    # Before Triton 3.7, hints accept a constant but not a field of a constant.
    ALIGNMENT: tl.constexpr = RULE.alignment
    first = tl.multiple_of(first, ALIGNMENT)[:, None]
    column = tl.multiple_of(column, ALIGNMENT)[:, None]
    if RULE.is_paired:  # two codes of four bits from one byte, which is read once
        is_there = get_lanes(column // 2, is_block, row_size // 2, block_size // 2, LANES // 2)
        pointer = codes + first // 2 + tl.arange(0, LANES // 2)[None, :]
        both = tl.load(pointer, mask=is_there, other=0).to(tl.int32)
        code = tl.interleave(both & 15, both >> 4)
    else:
        is_there = get_lanes(column, is_block, row_size, block_size, LANES)
        code = _load_codes(codes, first + tl.arange(0, LANES)[None, :], is_there, RULE)
    value = _value(code, RULE)
    scaled = value * scale[:, None]
    limited = _limited(scaled, LIMIT)
    if RULE.has_infinity:
        limited = tl.where(tl.abs(value) == float("inf"), scaled, limited)
    return limited


@triton.jit
def _limited(x, LIMIT: tl.constexpr):
    """Clamps finite values to a limit; NaN passes, in two instructions instead of four."""
    x = tl.minimum(x, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    return tl.maximum(x, -LIMIT, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def get_lanes(column, is_block, row_size, block_size, LANES: tl.constexpr):
    """Returns a (blocks, LANES) mask of elements; blocks begin in `column`, (blocks, 1)."""
    lane = tl.arange(0, LANES)[None, :]
    return is_block[:, None] & (lane < block_size) & (column + lane < row_size)


@triton.jit
def _load_codes(codes, number, is_there, RULE: tl.constexpr):
    """Loads codes by their indices as int32."""
    if RULE.width == 8:
        code = tl.load(codes + number, mask=is_there, other=0).to(tl.int32)
    else:
        bit = number * RULE.width
        pointer, place = codes + (bit >> 3), (bit & 7).to(tl.int32)
        code = tl.load(pointer, mask=is_there, other=0).to(tl.int32)
        if 8 % RULE.width != 0:
            # The bits of a code may continue in the next byte.
            goes_on = is_there & (place + RULE.width > 8)
            code |= tl.load(pointer + 1, mask=goes_on, other=0).to(tl.int32) << 8
        code = (code >> place) & ((1 << RULE.width) - 1)
    return code


@triton.jit
def _value(code, RULE: tl.constexpr):
    """Returns the values of codes as float32; integers are not yet multiplied by their factor."""
    sign = 1 << (RULE.width - 1)
    if RULE.is_integer:
        # The bits of 2^23 + code: converting integers runs at an eighth of the rate of additions.
        value = bits_to_float((code ^ sign) | BITS_OF_WHOLE) - (WHOLE + sign)
    else:
        # As bits of a float32 the code keeps its fraction; only the exponent's bias differs.
        magnitude = code & (sign - 1)
        value = bits_to_float(magnitude << RULE.shift) * RULE.factor
        value = tl.where(magnitude > RULE.largest, float("nan"), value)
        if RULE.has_infinity:
            value = tl.where(magnitude == RULE.largest + 1, float("inf"), value)
        value = bits_to_float(bit_width(value) | tl.where(code >= sign, SIGN, 0))
    return value


def get_rule(encoded: Encoded, number_format: NumberFormat) -> tuple[CodeRule, int]:
    """Returns the rule that decodes a tensor's codes, and its block size.

    Raises:
        ConfigError: if the kernels do not support the codes.
    """
    shape = encoded.shape
    if not decodes(number_format, len(shape), encoded.dtype):
        raise ConfigError(
            f"{number_format.label} in {encoded.dtype}: expected mxint or mxfp of up to 8 bits in "
            "blocks along the last axis, of float32, bfloat16 or float16; use the format's "
            "`decode`."
        )
    rule = code_rule(number_format)
    block_size = block_size_along_rows(number_format, len(shape))
    assert rule is not None
    assert block_size is not None
    alignment = math.gcd(shape[-1] if shape else 1, block_size, MAX_ALIGNMENT)
    is_paired = rule.width == 4 and alignment > 1
    return rule._replace(alignment=alignment, is_paired=is_paired), block_size
