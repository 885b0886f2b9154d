"""Byte packing of stream beats: codes side by side, lane 0 in the lowest bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chop.errors import ConfigError
from chop.hardware.design.port import Port

WIDEST = 64
"""Maximum bits of a code, which int64 holds."""
CHUNK_BITS = 1 << 24
_PLAIN: dict[int, np.dtype[Any]] = {n: np.dtype(f"<i{n // 8}") for n in (8, 16, 32, 64)}


def beat_bytes(port: Port) -> int:
    """Returns the bytes of a beat."""
    return port.bytes


def pack(codes: NDArray[np.int64], port: Port) -> bytes:
    """Packs beats into little-endian bytes; unused high bits are zero.

    Args:
        codes: int64 (beats, lanes).
        port: port of the beats.
    Raises:
        ConfigError: if a code exceeds the port's width.
    """
    _check(port)
    half = 1 << port.width - 1
    if codes.size and not (-half <= codes.min() and codes.max() < half):
        raise ConfigError(
            f"port '{port.name}': codes from {codes.min()} to {codes.max()} do not fit "
            f"{port.width} bits"
        )
    if port.width in _PLAIN:
        # Codes of 8, 16, 32 or 64 bits lie in memory as they lie in a beat.
        plain: bytes = codes.astype(_PLAIN[port.width]).tobytes()
        return plain
    rows = max(1, CHUNK_BITS // port.bits)
    starts = range(0, len(codes), rows)
    return b"".join(_pack(codes[start : start + rows], port) for start in starts)


def _pack(codes: NDArray[np.int64], port: Port) -> bytes:
    # The lowest bits of a negative int64 are its two's complement in any smaller width.
    octets = codes.astype("<i8")[..., None].view(np.uint8)[..., : -(-port.width // 8)]
    bits = np.unpackbits(octets, axis=-1, count=port.width, bitorder="little")
    return np.packbits(bits.reshape(len(codes), port.bits), axis=-1, bitorder="little").tobytes()


def unpack(beats: bytes, port: Port) -> NDArray[np.int64]:
    """Returns the codes of packed beats as int64 (beats, lanes). Inverse of `pack`."""
    _check(port)
    if port.width in _PLAIN:
        plain = np.frombuffer(beats, _PLAIN[port.width]).reshape(-1, port.lanes)
        return plain.astype(np.int64)
    octets = np.frombuffer(beats, np.uint8).reshape(-1, beat_bytes(port))
    rows = max(1, CHUNK_BITS // port.bits)
    starts = range(0, max(1, len(octets)), rows)
    return np.concatenate([_unpack(octets[start : start + rows], port) for start in starts])


def _unpack(octets: NDArray[np.uint8], port: Port) -> NDArray[np.int64]:
    bits = np.unpackbits(octets, axis=-1, count=port.bits, bitorder="little")
    codes = np.packbits(
        bits.reshape(len(octets), port.lanes, port.width), axis=-1, bitorder="little"
    )
    whole = np.zeros((len(octets), port.lanes, 8), np.uint8)
    whole[..., : codes.shape[-1]] = codes
    unused = WIDEST - port.width
    # Shifts bring the sign to the highest bit, and back over the unused ones.
    return whole.view("<i8")[..., 0] << unused >> unused


def _check(port: Port) -> None:
    if port.width > WIDEST:
        raise ConfigError(
            f"port '{port.name}': codes of {port.width} bits, expected at most {WIDEST}"
        )
