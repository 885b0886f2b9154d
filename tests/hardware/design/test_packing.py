"""Beats as bytes, against Python's own integers."""

import numpy as np
import pytest

from chop.errors import ConfigError
from chop.hardware.design import packing
from chop.hardware.design.packing import beat_bytes, pack, unpack
from chop.hardware.design.port import Port
from tests.subcases import subcases

SHAPES = [(1, 1), (7, 1), (1, 8), (3, 3), (13, 5), (5, 60), (8, 4), (16, 3), (9, 57), (63, 1)]
SHAPES += [(32, 2), (64, 8), (33, 33), (24, 1)]


def port(width, lanes):
    return Port("a", lanes, width, 1, True)


@subcases("width, lanes", SHAPES)
@subcases("chunk", [packing.CHUNK_BITS, 1])
def test_a_beat_is_its_codes_side_by_side(width, lanes, chunk, monkeypatch):
    monkeypatch.setattr(packing, "CHUNK_BITS", chunk)
    half = 1 << width - 1
    codes = np.random.default_rng(0).integers(-half, half, (9, lanes), np.int64)
    codes[0], codes[1] = -half, half - 1
    packed = pack(codes, port(width, lanes))
    size = beat_bytes(port(width, lanes))
    assert len(packed) == 9 * size and size == -(-width * lanes // 8)
    for row, beat in zip(codes.tolist(), range(0, len(packed), size), strict=True):
        word = sum((code & 2 * half - 1) << lane * width for lane, code in enumerate(row))
        assert packed[beat : beat + size] == word.to_bytes(size, "little")
    assert np.array_equal(unpack(packed, port(width, lanes)), codes)


def test_no_beats_are_no_bytes():
    none = np.zeros((0, 3), np.int64)
    assert pack(none, port(5, 3)) == b""
    assert unpack(b"", port(5, 3)).shape == unpack(b"", port(8, 3)).shape == (0, 3)


@pytest.mark.parametrize("code", [-5, 4])
def test_codes_beyond_the_wires_are_refused(code):
    with pytest.raises(ConfigError, match="do not fit 3 bits"):
        pack(np.array([[code]]), port(3, 1))
    with pytest.raises(ConfigError, match="codes of 65 bits, expected at most 64"):
        pack(np.array([[0]]), port(65, 1))
