"""Fast packing against the reference, and rows decoded by themselves."""

import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from chop.formats import parse_format
from chop.formats.packing import (
    _pack,
    _unpack,
    pack_bits,
    pack_trits,
    packed_bytes,
    unpack_bits,
    unpack_trits,
)
from tests.subcases import subcases

ROWS_APART = [
    {"name": "integer", "width": 8, "frac_width": 6},
    {"name": "integer", "width": 4, "frac_width": 3},
    *({"name": "minifloat_ieee", "width": 6, "exponent_width": 3}, {"name": "mxint"}),
    *({"name": "mxint", "width": 4}, {"name": "mxfp", "width": 6, "exponent_width": 2}),
    *({"name": "nvfp4"}, {"name": "scale_integer", "width": 8, "granularity": "row"}),
    *({"name": "binary"}, {"name": "binary", "scaling_factor": True}),
]
ROWS_MIXED = [
    {"name": "mxint", "block_dim": 0},
    {"name": "mxint", "block_size": [2, 16]},
    {"name": "scale_integer", "width": 8, "granularity": "tensor"},
    {"name": "ternary"},
    {"name": "block_fp", "width": 8, "exponent_width": 5},  # 20 bits of scales a row
]


@subcases("width", range(1, 33))
@subcases("count", [0, 1, 7, 8, 9, 65_537])
def test_packing_equals_the_bit_by_bit_reference(width, count):
    codes = torch.randint(2**width, (count,), dtype=torch.int64)
    packed = pack_bits(codes, width)
    assert torch.equal(packed, _pack(codes, width))
    assert packed.dtype == torch.uint8 and packed.numel() == packed_bytes(count, width)
    assert torch.equal(unpack_bits(packed, width, count).long(), codes)
    assert torch.equal(_unpack(packed, width)[:count], codes)
    trits = codes % 3
    assert torch.equal(unpack_trits(pack_trits(trits), count), trits)


@pytest.mark.parametrize("width", [4, 12])
def test_a_device_is_given_few_large_parts(width):
    # Each operation is a launch there; a weight of 4096 x 4096 would take thousands.
    codes = torch.empty(2**22, dtype=torch.int64, device="meta")
    with CountedOperations() as counted:
        packed = pack_bits(codes, width)
        assert unpack_bits(packed, width, codes.numel()).shape == codes.shape
    assert counted.operations < 60


class CountedOperations(TorchDispatchMode):
    operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        return func(*args, **(kwargs or {}))


def test_only_the_low_bits_of_negative_codes_are_packed():
    codes = torch.tensor([-1, -4, 3, -2])
    assert torch.equal(unpack_bits(pack_bits(codes, 3), 3, 4).long(), codes & 7)
    assert torch.equal(pack_bits(codes, 3), _pack(codes, 3))


@subcases("settings", ROWS_APART, ids=str)
@subcases("shape", [(7, 64), (5, 3, 32)])
def test_rows_are_decoded_alone(settings, shape):
    number_format = parse_format(settings)
    x = torch.randn(shape) * torch.logspace(-3, 3, shape[0]).view(-1, *[1] * (len(shape) - 1))
    assert number_format.is_row_separable(shape)
    index = torch.tensor([3, 0, 3, 4])
    taken = number_format.encode(x).take_rows(index)
    assert taken.shape == (4, *shape[1:])
    assert torch.equal(number_format.decode(taken), number_format.round(x)[index])


@pytest.mark.parametrize("settings", ROWS_MIXED, ids=str)
def test_formats_whose_rows_share_something_say_so(settings):
    assert not parse_format(settings).is_row_separable((8, 64))
    assert not parse_format(ROWS_APART[0]).is_row_separable((8, 0))
    assert not parse_format({"name": "integer", "width": 3, "frac_width": 1}).is_row_separable(
        (4, 5)
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "mxint"},
        {"name": "mxint", "width": 32},
        {"name": "mxfp", "width": 8, "exponent_width": 5},
        {"name": "block_log", "width": 8},
        {"name": "block_minifloat", "width": 8, "exponent_width": 4},
        {"name": "scale_integer", "width": 8, "granularity": "row"},
        {"name": "nvfp4"},
    ],
    ids=str,
)
def test_decoding_in_float32_rounds_as_in_float64(settings):
    number_format = parse_format(settings)
    x = torch.randn(300, 32) * torch.logspace(-149, 127, 300, base=2, dtype=torch.float64).view(
        -1, 1
    )
    x = x.float().clamp(-3.4e38, 3.4e38)
    x[::7, 3] = torch.finfo(torch.float32).max
    x[::11] = 0
    stored = number_format.encode(x)
    wide = number_format.decode(dataclasses.replace(stored, dtype=torch.float64))
    narrow = number_format.decode(stored)
    expected = wide.clamp(*[sign * torch.finfo(torch.float32).max for sign in (-1, 1)]).float()
    assert torch.equal(narrow.view(torch.int32), expected.view(torch.int32))


def test_bytes_of_a_strided_tensor_are_packed_side_by_side():
    padded = torch.arange(40, dtype=torch.uint8).view(5, 8)
    packed = pack_bits(padded[:, :1], 8)
    assert packed.is_contiguous() and packed.tolist() == [0, 8, 16, 24, 32]
    assert packed.untyped_storage().nbytes() == 5
