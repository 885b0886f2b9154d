"""Decoding packed codes gives the bits of `NumberFormat.decode`."""

import dataclasses

import pytest
import torch

from chop.errors import ConfigError
from chop.formats import MXFP, BlockFP, MXInt
from chop.kernels.codes import Packed
from chop.kernels.triton import register
from chop.nn.packed import pack
from chop.nn.quantized import QuantLinear
from tests.subcases import subcases

FORMATS = [
    *(MXInt(), MXInt(4), MXInt(4, block_size=16), MXInt(4, block_size=7), MXInt(3, block_size=5)),
    *(MXFP(8, 4), MXFP(8, 5), MXFP(6, 3), MXFP(6, 2, block_size=100), MXFP(4, 2)),
]


@pytest.fixture
def decoded(device):
    """The kernel's result."""
    from chop.kernels.triton.dequantize import dequantize

    def run(encoded, fmt):
        tensors = {name: getattr(encoded, name).to(device) for name in ("codes", "scales")}
        return dequantize(dataclasses.replace(encoded, **tensors), fmt)

    return run


@subcases("dtype", [torch.float32, torch.bfloat16], ids=str)
@subcases("fmt", FORMATS, ids=lambda fmt: fmt.label)
def test_every_bit_is_the_reference_s(decoded, floats, same_bits, fmt, dtype):
    for shape in [(13, 96), (5, 33), (3, 4, 50), (31,), (40, 1), (), (0, 3)]:
        x = floats(*shape, any_bits=False).to(dtype)
        encoded = fmt.encode(x)
        same_bits(decoded(encoded, fmt), fmt.round(x))


@subcases("fmt", FORMATS, ids=lambda fmt: fmt.label)
def test_every_code_and_scale(decoded, same_bits, fmt):
    encoded = fmt.encode(torch.zeros(80, 129))
    codes, scales = (torch.randint(0, 256, t.shape).byte() for t in (encoded.codes, encoded.scales))
    scales[scales == 254] = 253  # the lowest integer, which is never stored, would overflow
    for dtype in (torch.float32, torch.float16):
        encoded = dataclasses.replace(encoded, codes=codes, scales=scales, dtype=dtype)
        same_bits(decoded(encoded, fmt), fmt.decode(encoded))


@pytest.mark.parametrize("fmt", [MXInt(16), MXInt(8, block_dim=0), BlockFP(8)])
def test_other_codes_are_left_to_the_reference(device, decoded, same_bits, fmt):
    x = torch.randn(4, 40)
    encoded = fmt.encode(x)
    with pytest.raises(ConfigError, match="expected mxint or mxfp of up to 8 bits"):
        decoded(encoded, fmt)
    packed = Packed(encoded.codes, encoded.scales, None, [4, 40], fmt.key)
    assert register.decode(packed, x.dtype) is None
    same_bits(torch.ops.chop.decode(*packed, x.dtype), fmt.round(x))


def test_packed_layers_decode_by_the_kernel_on_a_gpu(device, same_bits):
    if device != "cuda":
        pytest.skip("no GPU: the operator decodes by the reference")
    config = {"name": "mxint", "width": 4, "block_size": 32}
    packed = pack(QuantLinear(64, 48, config={"weight": config}).eval())
    on_cpu = packed.weight
    same_bits(packed.to(device).weight, on_cpu)
    x = torch.randn(3, 64, device=device)
    torch.testing.assert_close(packed(x).cpu(), packed.cpu()(x.cpu()), rtol=1e-5, atol=1e-5)
