"""Conversion of GGUF blocks to codes and scales of chop's formats.

Source: ggml, `ggml-common.h`, the structures `block_q4_0`, `block_q4_1`, `block_q5_0`,
`block_q5_1`, `block_q8_0`, `block_q3_K`, `block_q6_K`, `block_mxfp4` and `block_nvfp4`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from chop.export.coded import E8M0_NAN
from chop.export.foreign.stored import Stored, checked_scales, stored_affine, stored_integers
from chop.export.gguf.blocks import BLOCK, E4M3_NAN, NV_BLOCK, NV_SUB
from chop.formats import MXFP, NVFP4
from chop.formats.packing import pack_bits

HALF = 2
"""Bytes of a float16."""
SUPER, SUB = 256, 16
"""Values of a Q3_K or Q6_K block, and of one of its scales."""
NIBBLE = 15


def read_blocks(type_name: str, blocks: Tensor) -> Stored | None:
    """Returns a weight in a format with the same values, or None if there is none.

    Args:
        type_name: ggml type.
        blocks: uint8 (rows, blocks per row, bytes per block).

    Raises:
        ValueError: if scales are not finite.
    """
    take = TYPES.get(type_name)
    return None if take is None else take(blocks)


def _q4_0(blocks: Tensor) -> Stored:
    numbers = _nibbles(blocks[..., HALF:]).short() - 8
    return stored_integers(numbers, _halves(blocks[..., :HALF]), 4, BLOCK)


def _q8_0(blocks: Tensor) -> Stored:
    numbers = blocks[..., HALF:].contiguous().view(torch.int8).flatten(1)
    return stored_integers(numbers, _halves(blocks[..., :HALF]), 8, BLOCK)


def _q5_0(blocks: Tensor) -> Stored:
    block_scales, codes = blocks.split([HALF, blocks.size(-1) - HALF], -1)
    return stored_integers(_fives(codes).short() - 16, _halves(block_scales), 5, BLOCK)


def _q4_1(blocks: Tensor) -> Stored | None:
    return _affine(blocks, _nibbles(blocks[..., 2 * HALF :]), 4)


def _q5_1(blocks: Tensor) -> Stored | None:
    return _affine(blocks, _fives(blocks[..., 2 * HALF :]), 5)


def _affine(blocks: Tensor, codes: Tensor, bits: int) -> Stored | None:
    """Converts d k + m to s (k - z) if some format has the zero point -m / d."""
    scales, lowest = _halves(blocks[..., :HALF]), _halves(blocks[..., HALF : 2 * HALF])
    checked_scales(scales)
    checked_scales(lowest)
    zeros = (-lowest.double() / scales.double()).nan_to_num(nan=0.0)
    # The quotient is rounded: only if it multiplies back exactly are the values the same.
    if not torch.equal(zeros * scales.double(), -lowest.double()):
        return None
    try:
        return stored_affine(codes, scales, zeros, bits, BLOCK)
    except ValueError:
        return None


def _q3_k(blocks: Tensor) -> Stored:
    """Decodes Q3_K: float16 times a 6-bit integer scale for 16 values, exact in float32."""
    high, low, scales, block_scales = blocks.split([SUPER // 8, SUPER // 4, 12, HALF], -1)
    # 2 bits of each of 128 values lie in 32 bytes, their third bits in 32 bytes for all 256 values.
    twos = low.unflatten(-1, (2, 1, 32)) >> _shifts(0, 2, 4, 6) & 3
    highest = (high[..., None, :] >> _shifts(*range(8)) & 1).view(twos.shape)
    numbers = (twos | highest << 2).short().flatten(1) - 4
    # 16 scales of 6 bits in 12 bytes: nibbles of the low 4 bits, then pairs of the high 2 bits.
    fours = scales[..., None, :8] >> _shifts(0, 4) & NIBBLE
    pairs = scales[..., None, 8:] >> _shifts(0, 2, 4, 6) & 3
    factors = (fours.flatten(-2) | pairs.flatten(-2) << 4).float() - 32
    return stored_integers(numbers, _halves(block_scales).float()[..., None] * factors, 3, SUB)


def _q6_k(blocks: Tensor) -> Stored:
    """Decodes Q6_K: float16 times an int8 scale for 16 values, exact in float32."""
    low, high, scales, block_scales = blocks.split([SUPER // 2, SUPER // 4, SUPER // SUB, HALF], -1)
    # Low 4 bits of 128 values in 64 bytes, their high 2 bits in 32 bytes.
    halves = low.unflatten(-1, (2, 2, 32))
    fours = torch.cat([halves & NIBBLE, halves >> 4], -2)
    twos = high.unflatten(-1, (2, 1, 32)) >> _shifts(0, 2, 4, 6) & 3
    numbers = (fours | twos << 4).short().flatten(1) - 32
    factors = _halves(block_scales).float()[..., None] * scales.contiguous().view(torch.int8)
    return stored_integers(numbers, factors, 6, SUB)


def _mxfp4(blocks: Tensor) -> Stored:
    exponents = blocks[..., 0]
    if bool((exponents == E8M0_NAN).any()):
        raise ValueError("some of its scales are NaN")
    codes = pack_bits(_nibbles(blocks[..., 1:]), 4)
    return Stored(MXFP(4, 2), codes, exponents.reshape(-1))


def _nvfp4(blocks: Tensor) -> Stored:
    """Decodes NVFP4 with a tensor scale of 1."""
    scales, codes = blocks.split([NV_BLOCK // NV_SUB, NV_BLOCK // 2], -1)
    if bool((scales >= E4M3_NAN).any()):
        raise ValueError("some of its scales are not positive e4m3 numbers")
    subs = codes.unflatten(-1, (NV_BLOCK // NV_SUB, -1))
    one = torch.ones(())
    return Stored(NVFP4(), pack_bits(_nibbles(subs), 4), scales.reshape(-1), one)


def _shifts(*counts: int) -> Tensor:
    """Returns shift counts as uint8 (counts, 1)."""
    return torch.tensor(counts, dtype=torch.uint8)[:, None]


def _fives(packed: Tensor) -> Tensor:
    """Unpacks 5-bit codes to uint8 (rows, columns); a block starts with their highest bits."""
    highest, low = packed.split([BLOCK // 8, BLOCK // 2], -1)
    bits = highest[..., None] >> torch.arange(8, dtype=torch.uint8) & 1
    codes: Tensor = _nibbles(low) | bits.flatten(1) << 4
    return codes


def _nibbles(packed: Tensor) -> Tensor:
    """Unpacks nibbles to uint8 (rows, columns); the first half of a block is in the low bits."""
    return torch.cat([packed & NIBBLE, packed >> 4], -1).flatten(1)


def _halves(pairs: Tensor) -> Tensor:
    """Reinterprets byte pairs as float16 (rows, blocks)."""
    return pairs.contiguous().view(torch.float16)[..., 0]


TYPES: Mapping[str, Callable[[Tensor], Stored | None]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q3_K": _q3_k,
    "Q6_K": _q6_k,
    "Q8_0": _q8_0,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}
"""Decoders by ggml type."""
