"""K-quants in ggml's byte layout: the inverse of `chop.export.gguf.stored`.

Source: ggml, `ggml-common.h`, the structures `block_q2_K` to `block_q6_K`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from chop.export.gguf.blocks import Blocks
from chop.formats import Encoded, KQuant
from chop.formats.k_quant import SUPER
from chop.formats.packing import unpack_bits

NIBBLE = 15


def pack_k_blocks(number_format: KQuant, encoded: Encoded) -> Blocks | str:
    """Packs a weight into super-blocks of the same values.

    Args:
        number_format: format of the weight.
        encoded: its codes and scales.
    Returns: the blocks, or a clause that continues a sentence after the layer's name.
    """
    if len(encoded.shape) != 2 or encoded.shape[1] % SUPER or not encoded.shape[0]:
        return f"its weight has the shape {tuple(encoded.shape)} instead of rows of {SUPER} values"
    assert encoded.scales is not None
    rows, columns = encoded.shape
    width, count = number_format.width, rows * columns
    codes = unpack_bits(encoded.codes.cpu(), width, count).view(-1, SUPER)
    if not number_format.kind.has_minimum:
        codes = codes ^ 1 << width - 1  # ggml adds half of the codes instead of a sign
    scales, minima, factors, minimum_factors = number_format.unpack_scales(encoded.scales.cpu())
    last = [] if minimum_factors is None else [minimum_factors.view(torch.uint8)]
    own = [factors.view(torch.uint8), *last]
    data = torch.cat(WIDTHS[width](codes, scales, minima, own), 1)
    return Blocks(f"Q{width}_K", data.view(rows, -1).numpy())


Packer = Callable[[Tensor, Tensor, Tensor | None, list[Tensor]], list[Tensor]]


def _q2_k(
    codes: Tensor, scales: Tensor, minima: Tensor | None, factors: list[Tensor]
) -> list[Tensor]:
    assert minima is not None
    return [scales | minima << 4, _twos(codes), *factors]


def _q3_k(
    codes: Tensor, scales: Tensor, minima: Tensor | None, factors: list[Tensor]
) -> list[Tensor]:
    positive = (scales.short() + 32).to(torch.uint8)
    fours = positive[:, :8] & NIBBLE | (positive[:, 8:] & NIBBLE) << 4
    pairs = _joined(positive.view(-1, 4, 4) >> 4, 2)
    return [_bits(codes >> 2), _twos(codes & 3), fours, pairs, *factors]


def _q4_k(
    codes: Tensor, scales: Tensor, minima: Tensor | None, factors: list[Tensor]
) -> list[Tensor]:
    return [*factors, _scales(scales, minima), _nibbles(codes)]


def _q5_k(
    codes: Tensor, scales: Tensor, minima: Tensor | None, factors: list[Tensor]
) -> list[Tensor]:
    return [*factors, _scales(scales, minima), _bits(codes >> 4), _nibbles(codes & NIBBLE)]


def _q6_k(
    codes: Tensor, scales: Tensor, minima: Tensor | None, factors: list[Tensor]
) -> list[Tensor]:
    halves = (codes & NIBBLE).view(-1, 2, 2, 64)
    low = halves[:, :, 0] | halves[:, :, 1] << 4
    return [low.flatten(1), _twos(codes >> 4), scales.view(torch.uint8), *factors]


WIDTHS: Mapping[int, Packer] = {2: _q2_k, 3: _q3_k, 4: _q4_k, 5: _q5_k, 6: _q6_k}
"""Parts of a super-block by the width of its codes."""


def _scales(scales: Tensor, minima: Tensor | None) -> Tensor:
    """Packs 8 scales and minima of 6 bits in 12 bytes."""
    assert minima is not None
    (s, t), (m, n) = scales.split(4, 1), minima.split(4, 1)
    return torch.cat([s | t >> 4 << 6, m | n >> 4 << 6, t & NIBBLE | (n & NIBBLE) << 4], 1)


def _twos(codes: Tensor) -> Tensor:
    """Packs codes of 2 bits: 32 bytes hold 128 values."""
    return _joined(codes.view(-1, 2, 4, 32), 2).flatten(1)


def _nibbles(codes: Tensor) -> Tensor:
    """Packs nibbles: 32 bytes hold 64 values."""
    return _joined(codes.view(-1, 4, 2, 32), 4).flatten(1)


def _bits(codes: Tensor) -> Tensor:
    """Packs single bits: 32 bytes hold 256 values."""
    return _joined(codes.view(-1, 8, 32), 1)


def _joined(codes: Tensor, width: int) -> Tensor:
    """Joins codes of the last axis but one into bytes, the first in the low bits."""
    joined = torch.zeros_like(codes.select(-2, 0))
    for place, part in enumerate(codes.unbind(-2)):
        joined |= part << place * width
    return joined
