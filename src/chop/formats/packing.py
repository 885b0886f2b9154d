"""Bit packing of codes of any width into bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from chop.formats.chunks import CHUNK

GROUP = 8
"""Number of codes that fill whole bytes at any width."""
WORD_WIDTH = 7
"""Largest width at which `GROUP` codes fit an int64 and are packed as one word."""
CHUNK_OF_A_DEVICE = 2**22
"""Codes processed at a time by a GPU, where each part costs kernel launches. Temporaries take up to
half a kilobyte per code.
"""


def pack_bits(codes: Tensor, width: int) -> Tensor:
    """Packs the low `width` bits of every code, least significant bit first.

    Args:
        codes: any integer dtype and shape; read in row-major order.
        width: bits per code, 1 to 32.
    Returns: uint8, one-dimensional, ceil(numel * width / 8) bytes; spare bits are zero.

    >>> pack_bits(torch.tensor([1, 2, 3, 0]), 2)
    tensor([57], dtype=torch.uint8)
    """
    if width == 8:
        return codes.reshape(-1).to(torch.uint8).contiguous()
    pack = _pack_words if width <= WORD_WIDTH else _pack
    parts = codes.reshape(-1).split(_codes_at_a_time(codes))
    return torch.cat([pack(part, width) for part in parts])


def _codes_at_a_time(tensor: Tensor) -> int:
    return CHUNK if tensor.device.type == "cpu" else CHUNK_OF_A_DEVICE


def _pack(codes: Tensor, width: int) -> Tensor:
    """Packs bit by bit: the reference."""
    places = torch.arange(width, device=codes.device)
    bits = (codes.view(-1, 1).to(torch.int64) >> places & 1).to(torch.uint8).reshape(-1)
    padding = -bits.numel() % 8
    bytes_of_bits = torch.nn.functional.pad(bits, (0, padding)).view(-1, 8)
    weights = (2 ** torch.arange(8, device=codes.device)).to(torch.uint8)
    return (bytes_of_bits * weights).sum(1, dtype=torch.uint8)


def _pack_words(codes: Tensor, width: int) -> Tensor:
    low = codes.to(torch.int64) & 2**width - 1
    groups = torch.nn.functional.pad(low, (0, -low.numel() % GROUP)).view(-1, GROUP)
    # The shifted codes do not overlap, so their sum is the word of a group.
    words = (groups << width * torch.arange(GROUP, device=codes.device)).sum(1, keepdim=True)
    packed = (words >> 8 * torch.arange(width, device=codes.device)).to(torch.uint8)
    return packed.view(-1)[: packed_bytes(codes.numel(), width)]


def packed_bytes(numel: int, width: int) -> int:
    """Returns the number of bytes that `pack_bits` fills."""
    return -(-numel * width // 8)


def unpack_bits(packed: Tensor, width: int, numel: int) -> Tensor:
    """Unpacks codes 0..2^width-1, shape (numel,): uint8 up to width 8, otherwise int64.

    >>> unpack_bits(torch.tensor([57], dtype=torch.uint8), 2, 4)
    tensor([1, 2, 3, 0], dtype=torch.uint8)
    """
    if width == 8:
        return packed
    wide = _unpack_words if width <= WORD_WIDTH else _unpack
    unpack = _unpack_bytes if GROUP % width == 0 else FAST_WIDTHS.get(width, wide)
    # A chunk of codes is a whole number of bytes.
    parts = packed.split(_codes_at_a_time(packed) // 8 * width)
    return torch.cat([unpack(part, width) for part in parts])[:numel]


def _unpack(packed: Tensor, width: int) -> Tensor:
    """Unpacks bit by bit to int64: the reference."""
    places = torch.arange(8, device=packed.device)
    bits = (packed.view(-1, 1) >> places & 1).reshape(-1)
    whole = bits[: bits.numel() // width * width].view(-1, width)
    weights = 2 ** torch.arange(width, device=packed.device)
    return (whole.to(torch.int64) * weights).sum(1)


def _unpack_bytes(packed: Tensor, width: int) -> Tensor:
    """Unpacks codes that do not cross bytes to uint8."""
    places = torch.arange(0, GROUP, width, dtype=torch.uint8, device=packed.device)
    codes: Tensor = packed[:, None] >> places & 2**width - 1
    return codes.view(-1)


def _unpack_sixes(packed: Tensor, width: int) -> Tensor:
    """Unpacks codes of 6 bits, four from three bytes, to uint8."""
    threes = torch.nn.functional.pad(packed, (0, -packed.numel() % 3)).view(-1, 3)
    a, b, c = threes.unbind(1)
    codes = [a & 63, (a >> 6 | b << 2) & 63, (b >> 4 | c << 4) & 63, c >> 2]
    return torch.stack(codes, 1).view(-1)


FAST_WIDTHS = {6: _unpack_sixes}
"""Methods for widths that cross bytes."""


def _unpack_words(packed: Tensor, width: int) -> Tensor:
    """Unpacks words to uint8; spare bits of the last group become codes of zero."""
    groups = torch.nn.functional.pad(packed, (0, -packed.numel() % width)).view(-1, width)
    words = groups.long() << 8 * torch.arange(width, device=packed.device)
    codes = words.sum(1, keepdim=True) >> width * torch.arange(GROUP, device=packed.device)
    unpacked: Tensor = (codes & 2**width - 1).to(torch.uint8)
    return unpacked.view(-1)


TRITS_PER_BYTE = 5


def pack_trits(trits: Tensor) -> Tensor:
    """Packs digits 0, 1, 2 in base 3, five to a byte, least significant first.

    Args:
        trits: any integer dtype and shape; read in row-major order.
    Returns: uint8, one-dimensional, ceil(numel / 5) bytes; spare digits are zero.

    >>> pack_trits(torch.tensor([2, 2, 2, 2, 2, 1]))
    tensor([242,   1], dtype=torch.uint8)
    """
    flat = torch.nn.functional.pad(trits.reshape(-1), (0, -trits.numel() % TRITS_PER_BYTE))
    weights = _trit_weights(trits.device)
    return (flat.view(-1, TRITS_PER_BYTE) * weights).sum(1).to(torch.uint8)


def unpack_trits(packed: Tensor, numel: int) -> Tensor:
    """Unpacks base-3 digits to uint8, shape (numel,).

    >>> unpack_trits(torch.tensor([242, 1], dtype=torch.uint8), 6)
    tensor([2, 2, 2, 2, 2, 1], dtype=torch.uint8)
    """
    every_byte = torch.arange(2**8, device=packed.device).view(-1, 1)
    table = (every_byte // _trit_weights(packed.device) % 3).to(torch.uint8)
    return table.index_select(0, packed.int()).view(-1)[:numel]


def _trit_weights(device: torch.device) -> Tensor:
    return 3 ** torch.arange(TRITS_PER_BYTE, device=device)
