"""The product with a packed weight is that with the decoded one, up to the order of sums."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from chop.errors import ConfigError
from chop.formats import MXFP, Integer, MXInt, ScaleInteger
from chop.kernels.codes import Packed

FORMATS = [
    MXInt(),
    MXInt(4),
    MXInt(4, block_size=7),
    MXInt(8, block_size=128),
    MXFP(8, 4),
    MXFP(6, 3),
    MXFP(4, 2, block_size=24),
]
# In whole tiles and not.
SHAPES = [(1, 9, 96), (3, 7, 75), (5, 64, 64), (20, 70, 200)]


@pytest.fixture
def product(device):
    """The kernel's result."""
    from chop.kernels.triton.linear import linear

    def run(x, weight, fmt, bias=None):
        tensors = {name: getattr(weight, name).to(device) for name in ("codes", "scales")}
        bias = None if bias is None else bias.to(device)
        return linear(x.to(device), dataclasses.replace(weight, **tensors), fmt, bias).cpu()

    return run


def bound(x, weight):
    """Twice the worst rounding error of a float32 sum of products."""
    return weight.size(1) * 2.0**-23 * F.linear(x.abs(), weight.abs())


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.label)
def test_float32_products_differ_by_the_rounding_of_sums(product, fmt):
    for rows, outputs, columns in SHAPES:
        x, bias = torch.randn(rows, columns), torch.randn(outputs)
        packed = fmt.encode(torch.randn(outputs, columns))
        weight = fmt.decode(packed)
        y = product(x, packed, fmt, bias)
        assert y.dtype is torch.float32
        assert ((y - F.linear(x, weight, bias)).abs() <= bound(x, weight) + 1e-6).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sums_of_halves_are_rounded_once(product, dtype):
    for rows, outputs, columns in SHAPES:
        x = torch.randn(rows, columns).to(dtype)
        packed = MXInt().encode(torch.randn(outputs, columns))
        weight = MXInt().decode(packed)
        y, expected = product(x, packed, MXInt()), F.linear(x.float(), weight)
        allowed = bound(x.float(), weight) + expected.abs() * torch.finfo(dtype).eps / 2
        assert y.dtype is dtype
        assert ((y.float() - expected).abs() <= allowed * 1.01).all()


def test_leading_axes_nan_and_nothing(product):
    x, weight = torch.randn(2, 3, 40), torch.randn(6, 40)
    weight[4, 35] = float("nan")
    packed = MXInt().encode(weight)
    y = product(x, packed, MXInt())
    assert y.shape == (2, 3, 6)
    assert y[..., 4].isnan().all() and y.isnan().sum() == 6
    assert product(x[:0], packed, MXInt()).shape == (0, 3, 6)


def test_what_does_not_fit_is_refused(product):
    packed = MXInt().encode(torch.ones(6, 40))
    with pytest.raises(ConfigError, match=r"expected x \(..., columns\)"):
        product(torch.ones(2, 39), packed, MXInt())
    with pytest.raises(ConfigError, match="blocks of up to 256"):
        large = MXInt(8, block_size=512)
        product(torch.ones(2, 40), large.encode(torch.ones(6, 40)), large)


def test_the_operator_s_kernel_rounds_inputs_and_leaves_unknown_codes(device):
    from chop.kernels.triton.register import linear

    fmt, x_format, other = MXInt(), Integer(8, 4), ScaleInteger(8)
    x, weight, bias = torch.randn(1, 1, 64), torch.randn(9, 64), torch.randn(9)

    def run(fmt, x=x):
        stored = fmt.encode(weight.to(device))
        packed = Packed(stored.codes, stored.scales, stored.tensor_scale, [9, 64], fmt.key)
        return linear(x.to(device), x_format.key, packed, bias.to(device))

    expected = F.linear(x_format.round(x), fmt.round(weight), bias)
    torch.testing.assert_close(run(fmt).cpu(), expected, rtol=1e-5, atol=1e-5)
    assert run(other) is None
    assert run(fmt, torch.randn(1, 2, 64)) is None  # decoding first is faster
