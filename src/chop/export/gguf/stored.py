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
from chop.formats import MXFP, NVFP4, KQuant
from chop.formats.k_quant import SUPER
from chop.formats.packing import pack_bits

HALF = 2
"""Bytes of a float16."""
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


def _q2_k(blocks: Tensor) -> Stored:
    both, low, factors = blocks.split([SUPER // 16, SUPER // 4, 2 * HALF], -1)
    return _k_quant(
        2, _twos(low), both & NIBBLE, factors[..., :HALF], both >> 4, factors[..., HALF:]
    )


def _q3_k(blocks: Tensor) -> Stored:
    high, low, scales, factors = blocks.split([SUPER // 8, SUPER // 4, 12, HALF], -1)
    numbers = (_twos(low) | _bits(high) << 2).short() - 4
    # 16 scales of 6 bits in 12 bytes: nibbles of the low 4 bits, then pairs of the high 2 bits.
    fours = scales[..., None, :8] >> _shifts(0, 4) & NIBBLE
    pairs = scales[..., None, 8:] >> _shifts(0, 2, 4, 6) & 3
    return _k_quant(3, numbers, (fours.flatten(-2) | pairs.flatten(-2) << 4).short() - 32, factors)


def _q4_k(blocks: Tensor) -> Stored:
    factors, scales, codes = blocks.split([2 * HALF, 12, SUPER // 2], -1)
    return _with_minima(4, _halves_of_64(codes), factors, scales)


def _q5_k(blocks: Tensor) -> Stored:
    factors, scales, high, low = blocks.split([2 * HALF, 12, SUPER // 8, SUPER // 2], -1)
    return _with_minima(5, _halves_of_64(low) | _bits(high) << 4, factors, scales)


def _q6_k(blocks: Tensor) -> Stored:
    low, high, scales, factors = blocks.split([SUPER // 2, SUPER // 4, SUPER // 16, HALF], -1)
    # Low 4 bits of 128 values in 64 bytes, their high 2 bits in 32 bytes.
    halves = low.unflatten(-1, (2, 2, 32))
    fours = torch.cat([halves & NIBBLE, halves >> 4], -2).flatten(1)
    numbers = (fours | _twos(high) << 4).short() - 32
    return _k_quant(6, numbers, scales.contiguous().view(torch.int8), factors)


def _with_minima(width: int, codes: Tensor, factors: Tensor, scales: Tensor) -> Stored:
    """Decodes the 8 scales and minima of 6 bits that Q4_K and Q5_K store in 12 bytes."""
    first, second, last = scales.split(4, -1)
    wholes = torch.cat([first & 63, last & NIBBLE | first >> 2 & 48], -1)
    minima = torch.cat([second & 63, last >> 4 | second >> 2 & 48], -1)
    return _k_quant(width, codes, wholes, factors[..., :HALF], minima, factors[..., HALF:])


def _k_quant(
    width: int,
    numbers: Tensor,
    scales: Tensor,
    factors: Tensor,
    minima: Tensor | None = None,
    minimum_factors: Tensor | None = None,
) -> Stored:
    """Stores super-blocks.

    Args:
        width: bits of a code.
        numbers: integers (rows, columns).
        scales: integers (rows, supers, groups).
        factors: bytes of float16 (rows, supers, 2).
        minima: integers of the shape of `scales`, or None.
        minimum_factors: bytes of the shape of `factors`, or None.
    """
    halves = [_halves(x).reshape(-1, 1) for x in (factors, minimum_factors) if x is not None]
    for each in halves:
        checked_scales(each)
    kind = KQuant(width)
    wholes = [None if x is None else x.flatten(0, 1) for x in (scales, minima)]
    assert wholes[0] is not None
    packed = kind.pack_scales(
        wholes[0], wholes[1], halves[0], halves[1] if minima is not None else None
    )
    codes = pack_bits(numbers.long() & 2**width - 1, width)
    return Stored(kind, codes, packed, shape=(numbers.size(0), numbers.size(1)))


def _twos(packed: Tensor) -> Tensor:
    """Unpacks codes of 2 bits, of which 32 bytes hold 128 values, to (rows, columns)."""
    codes: Tensor = packed.unflatten(-1, (2, 1, 32)) >> _shifts(0, 2, 4, 6) & 3
    return codes.flatten(1)


def _halves_of_64(packed: Tensor) -> Tensor:
    """Unpacks nibbles, of which 32 bytes hold 64 values, to (rows, columns)."""
    codes: Tensor = packed.unflatten(-1, (4, 1, 32)) >> _shifts(0, 4) & NIBBLE
    return codes.flatten(1)


def _bits(packed: Tensor) -> Tensor:
    """Unpacks single bits, of which 32 bytes hold 256 values, to (rows, columns)."""
    return (packed[..., None, :] >> _shifts(*range(8)) & 1).flatten(1)


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
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q8_0": _q8_0,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}
"""Decoders by ggml type."""
