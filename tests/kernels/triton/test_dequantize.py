"""Decoding packed codes gives the bits of `NumberFormat.decode`."""

import dataclasses

import pytest
import torch

from chop.errors import ConfigError
from chop.formats import MXFP, BlockFP, MXInt

FORMATS = [
    MXInt(),
    MXInt(4),
    MXInt(4, block_size=16),
    MXInt(4, block_size=7),
    MXInt(3, block_size=5),
    MXFP(8, 4),
    MXFP(8, 5),
    MXFP(6, 3),
    MXFP(6, 2, block_size=100),
    MXFP(4, 2),
]


@pytest.fixture
def decoded(device):
    """The kernel's result."""
    from chop.kernels.triton.dequantize import dequantize

    def run(encoded, fmt):
        tensors = {name: getattr(encoded, name).to(device) for name in ("codes", "scales")}
        return dequantize(dataclasses.replace(encoded, **tensors), fmt)

    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.label)
def test_every_bit_is_the_reference_s(decoded, floats, same_bits, fmt, dtype):
    for shape in [(13, 96), (5, 33), (3, 4, 50), (31,), (), (0, 3)]:
        x = floats(*shape, any_bits=False).to(dtype)
        encoded = fmt.encode(x)
        same_bits(decoded(encoded, fmt), fmt.round(x))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.label)
def test_every_code_and_scale(decoded, same_bits, fmt):
    encoded = fmt.encode(torch.zeros(80, 129))
    any_bytes = [torch.randint(0, 256, t.shape).byte() for t in (encoded.codes, encoded.scales)]
    for dtype in (torch.float32, torch.float16):
        encoded = dataclasses.replace(encoded, codes=any_bytes[0], scales=any_bytes[1], dtype=dtype)
        same_bits(decoded(encoded, fmt), fmt.decode(encoded))


@pytest.mark.parametrize("fmt", [MXInt(16), MXInt(8, block_dim=0), BlockFP(8)])
def test_other_codes_are_refused(decoded, fmt):
    with pytest.raises(ConfigError, match="expected mxint or mxfp of up to 8 bits"):
        decoded(fmt.encode(torch.ones(4, 40)), fmt)
