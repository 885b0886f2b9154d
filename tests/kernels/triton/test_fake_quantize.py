"""The fake-quantizers give the bits of `NumberFormat.round`."""

import pytest
import torch

from chop.formats import (
    MXFP,
    NVFP4,
    Binary,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    Float,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
)
from chop.kernels.triton import register
from chop.kernels.triton.rules import takes
from tests.formats.composed import OpenE5M2, TileLog
from tests.subcases import subcases

ELEMENTS = [
    *(Integer(8, 4), Integer(4, -3), Integer(32, 10), Integer(8, 120)),
    *(Integer(6, 3, is_signed=False), Integer(8, 4, floor=True), Integer(8, "minmax")),
    *(MinifloatIEEE(8, 4), MinifloatIEEE(8, 5), MinifloatIEEE(3, 1), MinifloatIEEE(16, 8)),
    *(MinifloatDenorm(8, 4), MinifloatDenorm(3, 1)),
    *(Log(8), Log(2, 0), Log(4, 3, nearest="linear"), Log(9, 125, zero_code=True)),
    Log(5, 7, nearest="linear", zero_code=True),
]
BLOCKS = [
    *(MXInt(), MXInt(4, block_size=16), MXInt(32, block_size=7), MXInt(8, block_dim=0)),
    *(MXFP(), MXFP(8, 5, "ceil"), MXFP(6, 3, block_size=100), MXFP(6, 2, "even"), MXFP(4, 2)),
    *(BlockFP(8), BlockFP(2, 1), BlockFP(6, 4, 3, block_size=[2, 16])),
    BlockMinifloat(8, 4),
    *(BlockLog(4, 4), BlockLog(8)),
    TileLog(),
    OpenE5M2(),
]
REFUSED = [
    Float(),
    Binary(),
    NVFP4(),
    *(MinifloatIEEE(32, 8), MinifloatIEEE(8, 4, 150), MinifloatIEEE(8, 5, -200)),
    Log(16),
    BlockLog(16),
    BlockFP(8, 8, 200),
    MXFP(12, 8),
    MXInt(block_size=2**13),
]
DTYPES = [torch.float32, torch.bfloat16]


def label(value):
    return getattr(value, "label", str(value))


@pytest.fixture
def rounded(device, monkeypatch):
    """The kernel's result.

    The interpreter takes its time for each tile, so that they are large there; a GPU's compiler
    takes the longer the larger they are.
    """
    from chop.kernels.triton import fake_quantize

    if device == "cpu":
        monkeypatch.setattr(fake_quantize, "TILE", 2**16)

    def run(x, fmt, out=None):
        out = torch.empty_like(x, device=device) if out is None else out
        assert register.run(x.to(device), fmt, out)
        return out

    return run


@subcases("dtype", DTYPES, ids=str)
@subcases("fmt", [*ELEMENTS, *BLOCKS], ids=label)
def test_every_bit_is_the_reference_s(rounded, floats, same_bits, fmt, dtype):
    x = floats(33, 131).to(dtype)
    same_bits(rounded(x, fmt), fmt.round(x))


@pytest.mark.parametrize(
    "fmt", [Integer(8, 4), MinifloatIEEE(8, 4), Log(4, 3), MXInt(), MXFP(4, 2)]
)
def test_every_bfloat16(rounded, same_bits, fmt):
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    same_bits(rounded(x, fmt), fmt.round(x))
    same_bits(rounded(x.float(), fmt), fmt.round(x.float()))


@pytest.mark.parametrize("fmt", [Integer(8, 4), MXInt(), BlockFP(6, block_size=[2, 16])], ids=label)
def test_any_shape_layout_and_destination(rounded, floats, same_bits, fmt):
    for shape in [(), (1,), (0, 3), (33,), (2, 3, 4, 35)]:
        x = floats(*shape)
        same_bits(rounded(x, fmt), fmt.round(x))
    x = floats(40, 30).t()
    same_bits(rounded(x, fmt), fmt.round(x))
    same_bits(rounded(x.contiguous(), fmt, out=torch.empty_like(x)), fmt.round(x))


def test_in_place(rounded, device, floats, same_bits):
    x = floats(5, 70).to(device)
    expected = MXFP(8, 4).round(x)
    same_bits(rounded(x, MXFP(8, 4), out=x), expected)


def test_several_programs(device, floats, same_bits):
    for fmt in (Integer(8, 4), MXInt(8, block_size=24)):
        x = floats(50, 130).half()
        y = torch.empty_like(x, device=device)
        assert register.run(x.to(device), fmt, y)
        same_bits(y, fmt.round(x))


@subcases("fmt", REFUSED, ids=label)
def test_formats_without_exact_constants_are_left_to_the_reference(fmt):
    assert not takes(fmt, torch.float32)
    out = torch.full((3,), 7.0)
    assert not register.run(torch.ones(3), fmt, out)
    assert out.tolist() == [7.0] * 3


def test_float64_and_a_missing_triton_are_left_to_the_reference(monkeypatch):
    x = torch.ones(3)
    assert not register.run(x.double(), Integer(8, 4), x.double())
    monkeypatch.setattr(register, "is_installed", lambda: False)
    assert not register.run(x, Integer(8, 4), torch.empty_like(x))
    assert takes(Integer(8, 4), torch.float32)


def test_the_operator_runs_the_kernel_on_a_gpu(device, floats, same_bits):
    if device != "cuda":
        pytest.skip("no GPU: the operator has the CPU's kernel")
    x = floats(97, 131).to(device).requires_grad_()
    y = MXInt()(x)
    same_bits(y.detach(), MXInt().round(x.detach().cpu()))
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
