"""Lookup tables, nested scales, and super-blocks, by their definitions."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from chop.formats import NF4, Float, KQuant
from chop.formats.nf4 import TABLES
from chop.kernels import packed_linear_directly


def test_quantiles_are_those_of_the_paper():
    """Appendix E of arXiv:2305.14314."""
    table = torch.tensor(TABLES["nf4"])
    assert table[0] == -1 and table[7] == 0 and table[15] == 1
    normal = torch.distributions.Normal(0.0, 1.0)
    offset = (1 - 1 / 32 + 1 - 1 / 30) / 2
    above = normal.icdf(torch.linspace(offset, 0.5, 9, dtype=torch.float64)[:-1])
    below = -normal.icdf(torch.linspace(offset, 0.5, 8, dtype=torch.float64)[:-1])
    expected = torch.cat([below, torch.zeros(1).double(), above.flip(0)]) / above[0]
    torch.testing.assert_close(table.double(), expected, rtol=0, atol=2e-6)


def test_each_value_becomes_the_nearest_number_of_its_group():
    x = torch.randn(6, 100)
    y = NF4(32).round(x)
    for row in range(6):
        for start in range(0, 100, 32):
            part = x[row, start : start + 32]
            numbers = part.abs().max() * torch.tensor(TABLES["nf4"])
            best = (part[:, None] - numbers).abs().argmin(1)
            assert torch.equal(y[row, start : start + 32], numbers[best])


def test_nested_scales_are_within_a_step_of_the_largest_magnitudes():
    x = torch.randn(64, 640) * torch.rand(64, 1)
    plain, nested = NF4().round(x), NF4(nested=True).round(x)
    assert 0 < (nested - x).norm() <= 1.05 * (plain - x).norm()
    assert NF4(nested=True).bits(x.shape) < 4.14 < NF4().bits(x.shape) == 4.5
    assert not NF4(nested=True).is_row_separable(x.shape)


@pytest.mark.parametrize("width", [2, 3, 4, 5, 6])
def test_super_blocks_by_their_formula(width):
    fmt, x = KQuant(width), torch.randn(3, 300)
    encoded = fmt.encode(x)
    parts = fmt.unpack_scales(encoded.scales)
    group = fmt.kind.group
    y = fmt.decode(encoded).numpy()
    codes = (
        fmt.element.values(fmt.element.unpack(encoded.codes, x.numel()).long()).view(3, 300).numpy()
    )
    for row, column in ((0, 0), (1, 255), (2, 256), (2, 299)):
        block = 2 * row + column // 256
        place = column % 256 // group
        step = np.float32(parts.factors[block, 0].item() * parts.scales[block, place].item())
        value = step * np.float32(codes[row, column])
        if parts.minima is not None:
            least = np.float32(parts.minimum_factors[block, 0])
            value = value - least * np.float32(parts.minima[block, place])
        assert value == y[row, column]
    noise = 20 * torch.log10(x.norm() / (fmt.round(x) - x).norm())
    assert noise > 6 * width - 2.5


@pytest.mark.parametrize(
    "fmt", [NF4(), NF4(nested=True), NF4(48, nested=True), KQuant(4), KQuant(6)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_decode_and_multiply_like_the_reference(fmt, dtype):
    weight = torch.randn(256, 592) * 0.05
    encoded = dataclasses.replace(fmt.encode(weight), dtype=dtype)
    codes = encoded.codes, encoded.scales, encoded.tensor_scale, [256, 592], fmt.key
    assert torch.equal(torch.ops.chop.decode(*codes, dtype), fmt.decode(encoded))
    exact = fmt.decode(dataclasses.replace(encoded, dtype=torch.float64))
    for rows in (1, 5, 96):
        x, bias = torch.randn(rows, 592).to(dtype), torch.randn(256).to(dtype)
        y = packed_linear_directly(x, Float().key, *codes, bias)
        expected = F.linear(x.double(), exact, bias.double())
        step = 2.0**-18 if dtype == torch.float32 else 2.0**-6
        within = step * (F.linear(x.double().abs(), exact.abs()) + bias.double().abs())
        assert y.dtype == dtype and bool(((y - expected).abs() <= within).all())


def test_rows_of_super_blocks_are_decoded_separately():
    fmt, x = KQuant(6), torch.randn(12, 300)
    encoded, index = fmt.encode(x), torch.tensor([7, 0, 11])
    assert fmt.is_row_separable(x.shape)
    rows = encoded.take_rows(index)
    assert torch.equal(fmt.decode(rows), fmt.decode(encoded)[index])
    # A shape of -1 rows is that of codes that are a part of a tensor.
    parts = rows.codes, rows.scales, None, [-1, 300], fmt.key, torch.float32
    assert torch.equal(torch.ops.chop.decode(*parts), fmt.decode(rows))


@pytest.mark.parametrize("fmt", [NF4(), NF4(nested=True), KQuant(3), KQuant(4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_values_saturate_to_finite_ones(fmt, dtype):
    x = torch.tensor([1.0, -1.0, 0.5]).repeat(200).to(dtype).view(2, 300)
    x = x * torch.finfo(dtype).max
    y = fmt.round(x)
    assert y.isfinite().all() and torch.equal(y, fmt.decode(fmt.encode(x)))
    assert torch.equal(y.sign(), x.sign())
    within = (y - x).abs() <= 0.15 * x.abs()
    assert (fmt.saturates(x) | within).all()


@pytest.mark.parametrize("fmt", [NF4(), KQuant(3), KQuant(4)])
def test_infinities_saturate_without_finite_values(fmt):
    x = torch.tensor([[torch.inf, -torch.inf, torch.nan, 0.0]])
    assert fmt.saturates(x).tolist() == [[True, True, False, False]]
    assert fmt.round(x)[0, :2].isfinite().all() and fmt.round(x)[0, 2].isnan()


@pytest.mark.parametrize("width", [2, 4, 5])
def test_values_below_the_smallest_step_become_zero(width):
    x = torch.randn(2, 300) * 1e-6
    assert (KQuant(width).round(x) - x).norm() <= x.norm()


@pytest.mark.parametrize("fmt", [NF4(), NF4(nested=True), KQuant(3), KQuant(4)])
def test_tensors_without_data_have_their_shape(fmt):
    x = torch.empty(3, 300, dtype=torch.bfloat16, device="meta")
    for y in (fmt.round(x), fmt.decode(fmt.encode(x))):
        assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
