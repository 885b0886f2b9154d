"""Formats with shared scales: layout, definitions worked out again by hand, other libraries."""

import math

import gfloat
import gfloat.formats as gf
import ml_dtypes
import numpy as np
import pytest
import torch

from chop.errors import ConfigError
from chop.formats import (
    MXFP,
    NVFP4,
    BlockFP,
    BlockLog,
    BlockMinifloat,
    MXInt,
    ScaleInteger,
)
from chop.formats.groups import Blocks, Whole
from tests.subcases import subcases

NAN, INF = float("nan"), float("inf")


def get_rows(size, count=400, seed=0):
    """(count, size) float32 over many magnitudes, zeros and powers of two among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, size, generator=generator)
    x = x * torch.exp2(torch.randint(-30, 30, (count, 1), generator=generator).float())
    x[0] = 0
    x[1] = torch.exp2(torch.arange(size).float() % 5)
    return x


def differences(ours, theirs):
    return int((ours.numpy() != np.asarray(theirs, dtype=np.float32)).sum())


ALL_BFLOAT16 = torch.arange(2**16).to(torch.uint16).view(torch.bfloat16).float()


def many_blocks():
    """(blocks, 32): every finite bfloat16 in order and shuffled, and 128,000 random float32."""
    finite = ALL_BFLOAT16[ALL_BFLOAT16.isfinite()]
    shuffled = finite[torch.randperm(finite.numel(), generator=torch.Generator().manual_seed(0))]
    return torch.cat([finite.view(-1, 32), shuffled.view(-1, 32), get_rows(32, 4000)])


ELEMENTS = {
    "float8_e4m3fn": MXFP(8, 4),
    "float8_e5m2": MXFP(8, 5),
    "float6_e3m2fn": MXFP(6, 3),
    "float6_e2m3fn": MXFP(6, 2),
    "float4_e2m1fn": MXFP(4, 2),
    "int8": MXInt(),
}


def rounded_elements(name, quotients):
    """Saturated to what the element has, and rounded by ml_dtypes, or by gfloat."""
    if name == "int8":
        steps = gfloat.round_ndarray(gf.format_info_ocp_int8, quotients, sat=True)
        return np.clip(steps, -127 / 64, 127 / 64)
    dtype = getattr(ml_dtypes, name)
    largest = float(ml_dtypes.finfo(dtype).max)
    return np.clip(quotients, -largest, largest).astype(dtype).astype(np.float64)


@pytest.mark.parametrize("name", ELEMENTS)
def test_microscaling_equals_ml_dtypes_on_every_bfloat16_magnitude(name):
    fmt, x = ELEMENTS[name], many_blocks()
    exact = x.double().numpy()
    encoded = fmt.encode(x)
    scale = encoded.scales.numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float64)[:, None]
    _, exponent = np.frexp(np.abs(exact).max(1, keepdims=True))
    top = 0 if name == "int8" else math.floor(math.log2(ml_dtypes.finfo(name).max))
    wanted = np.where(exact.any(1, keepdims=True), exponent - 1 - top, -127)
    assert np.array_equal(scale, np.exp2(np.clip(wanted, -127, 127).astype(np.float64)))
    limit = float(torch.finfo(torch.float32).max)
    expected = np.clip(rounded_elements(name, exact / scale) * scale, -limit, limit)
    assert differences(fmt.round(x), expected) == 0


@pytest.mark.parametrize("fmt", [*ELEMENTS.values(), NVFP4(block_size=32)])
def test_a_block_with_a_nan_or_an_infinity_is_nan_whole_and_no_other(fmt):
    x = ALL_BFLOAT16.view(-1, 32)
    non_finite = ~x.isfinite().all(1)
    assert non_finite.sum() == 2 * (2**7 // 32)  # both signs: infinity and NaN share an exponent
    y = fmt.round(x)
    assert y[non_finite].isnan().all() and y[~non_finite].isfinite().all()
    assert same_values(fmt.decode(fmt.encode(x)), y)


def same_values(a, b):
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def test_microscaling_rules_that_libraries_disagree_on():
    fmt = MXInt(block_size=4)
    tiny = torch.tensor([1e-40, -1e-40, 0.0, 2e-39])
    encoded = fmt.encode(tiny)
    assert encoded.scales.tolist() == [0]  # E = -127
    assert fmt.round(tiny)[3] == round(2e-39 * 2**127 * 64) / 64 * 2.0**-127
    assert fmt.encode(torch.zeros(4)).scales.tolist() == [0]
    for bad in (NAN, INF, -INF):
        x = torch.ones(8)
        x[1] = bad
        assert fmt.encode(x).scales.tolist() == [255, 127]
    assert fmt.round(torch.tensor([-2.0, 1.999, 1.0, 2**-7])).tolist() == [-2.0, 2.0, 1.0, 0.0]
    assert fmt.round(torch.tensor([-1.999, 1.999, 1.0, 0.0])).tolist()[:2] == [-127 / 64, 127 / 64]


@pytest.mark.parametrize("fmt", [MXInt(), MXFP(), MXFP(4, 2), BlockFP(8), BlockLog(8), NVFP4()])
def test_half_precision_near_its_limit_stays_finite(fmt):
    x = torch.tensor([6e4, -6.5e4, 1.0, 0.5] * 8, dtype=torch.float16)
    y = fmt.round(x)
    assert y.isfinite().all() and y.dtype == torch.float16
    assert (y[:2].float() / x[:2].float() - 1).abs().max() < 0.3


def test_scale_modes():
    x = torch.tensor([3.9, 1.0, 0.5, -0.3])
    floor, ceil, even = (
        MXFP(4, 2, mode, block_size=4).round(x) for mode in ("floor", "ceil", "even")
    )
    assert floor.tolist() == [3.0, 1.0, 0.5, -0.25]
    assert ceil.tolist() == [4.0, 1.0, 0.5, -0.5]
    assert even.tolist() == [4.0, 1.0, 0.5, -0.5]
    for fmt in (MXFP(8, 4, "ceil"), MXFP(6, 2, "ceil")):
        assert not fmt.saturates(get_rows(32)[1:]).any()
    assert MXFP(8, 4).saturates(torch.tensor([500.0, 1.0])).tolist() == [True, False]
    assert MXFP(8, 4).round(torch.tensor([500.0, 256.0])).tolist() == [448.0, 256.0]


def some_magnitudes(size):
    """(rows, size): every bfloat16 from 2^-20 to 2^20, shuffled, and 100,000 random float32."""
    chosen = ALL_BFLOAT16[(ALL_BFLOAT16.abs() >= 2**-20) & (ALL_BFLOAT16.abs() < 2**20)]
    random = torch.randn(100_000 // size * size, generator=torch.Generator().manual_seed(1))
    shuffled = chosen[torch.randperm(chosen.numel(), generator=torch.Generator().manual_seed(0))]
    small = get_rows(size, 64)[2:] * 1e-3
    small = small / small.abs().amax(1, keepdim=True) * torch.linspace(0.01, 3, 62)[:, None]
    return [chosen.view(-1, size), shuffled.view(-1, size), random.view(-1, size), small]


@pytest.mark.parametrize("static", [None, 2**-14, 0.003])
def test_nvfp4_is_its_definition(static):
    # By gfloat: ml_dtypes rounds float64 twice, by way of float32.
    fmt = NVFP4(tensor_scale=static)
    for x in some_magnitudes(16):
        exact = x.double().numpy()
        g = np.float32(static or np.abs(exact).max() / (448 * 6)).astype(np.float64)
        wanted = np.abs(exact).max(1, keepdims=True) / 6 / g
        scale = gfloat.round_ndarray(gf.format_info_ocp_e4m3, wanted, sat=True) * g
        quotients = exact / np.where(scale == 0, 1, scale)
        element = gfloat.round_ndarray(gf.format_info_ocp_e2m1, quotients, sat=True)
        assert differences(fmt.round(x), element * scale) == 0
        assert fmt.encode(x).tensor_scale.item() == np.float32(g)
        assert fmt.bits(x.shape) == 4.5 + 32 / x.numel()
    assert fmt.bits() == 4.5


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-39, math.inf, math.nan])
def test_a_tensor_scale_is_a_positive_float32_number(scale):
    with pytest.raises(ConfigError, match=r"nvfp4\.tensor_scale: expected a number from 1\.18e-38"):
        NVFP4(tensor_scale=scale)


@pytest.mark.parametrize("width, exponent_width, bias", [(8, 8, 127), (4, 8, 127), (6, 4, 7)])
def test_block_fp_is_its_definition(width, exponent_width, bias):
    x = get_rows(16) if exponent_width == 8 else get_rows(16) % 100
    places = 2 ** (width - 1)
    y = BlockFP(width, exponent_width, bias).round(x)
    for row, rounded in zip(x.double().tolist(), y.double().tolist(), strict=True):
        amax = max(map(abs, row))
        wanted = math.frexp(amax)[1] if amax else -bias
        scale = 2.0 ** min(max(wanted, -bias), 2**exponent_width - 1 - bias)
        steps = [min(round(abs(value) / scale * places), places - 1) for value in row]
        expected = [
            math.copysign(step / places * scale, value)
            for step, value in zip(steps, row, strict=True)
        ]
        assert rounded == expected
    assert BlockFP(8).round(torch.tensor([1.0, 0.992])).tolist()[0] == 1.0


def test_block_minifloat_is_its_definition():
    fmt = BlockMinifloat(8, 4, 8)
    x = get_rows(16)[1:]
    y = fmt.round(x)
    for row, rounded in zip(x.double(), y.double(), strict=True):
        bias = 15 - (math.frexp(row.abs().max().item())[1] - 1)
        book = [2.0 ** (1 - bias) * f / 8 for f in range(8)]
        book += [2.0 ** (e - bias) * (1 + f / 8) for e in range(1, 16) for f in range(8)]
        distance = (row.abs()[:, None] - torch.tensor(book).double()).abs()
        assert torch.equal((row - rounded).abs(), distance.min(1).values)
        assert torch.isin(rounded.abs(), torch.tensor(book).double()).all()
    weights = torch.randn(64, 64) * 0.02
    assert (fmt.round(weights) - weights).norm() / weights.norm() < 0.04


def test_block_log_is_its_definition():
    fmt = BlockLog(4, 8)
    x = get_rows(16)[1:]
    y = fmt.round(x)
    top = x.double().abs().amax(1, keepdim=True).log2().ceil()
    wanted = x.double().abs().log2().round().clamp(max=top.expand(x.shape)).maximum(top - 7)
    assert torch.equal(y.double().abs(), torch.exp2(wanted))
    assert torch.equal(y.sign(), torch.where(x < 0, -1.0, 1.0))


@pytest.mark.parametrize("width", [4, 8])
def test_scale_integer_equals_torch(width):
    limit = 2 ** (width - 1) - 1
    for x in some_magnitudes(32):
        rows = len(x)
        scales = x.abs().amax(1) / limit
        theirs = torch.fake_quantize_per_channel_affine(
            x, scales, torch.zeros(rows, dtype=torch.int32), 0, -limit, limit
        )
        # torch multiplies by 1/s: a quotient within rounding of a tie may go the other way.
        is_tie = ((x / scales[:, None]).abs() % 1 - 0.5).abs() < 1e-5
        assert is_tie.double().mean() < 0.02
        for granularity in ("channel", "row"):
            ours = ScaleInteger(width, granularity=granularity).round(x)
            torch.testing.assert_close(ours[~is_tie], theirs[~is_tie], rtol=1e-6, atol=0)
        whole = ScaleInteger(width, granularity="tensor")
        scale = x.abs().max() / limit
        theirs = torch.fake_quantize_per_tensor_affine(x, scale.item(), 0, -limit, limit)
        is_tie = ((x / scale).abs() % 1 - 0.5).abs() < 1e-5
        torch.testing.assert_close(whole.round(x)[~is_tie], theirs[~is_tie], rtol=1e-6, atol=0)
        assert whole.round(x).unique().numel() <= 2 * limit + 1


def test_scale_integer_keeps_its_maximum_and_its_neighbors_apart():
    x = torch.tensor([[100.0, 1.0, 0.3], [0.5, -0.2, 0.1], [0.0, 0.0, 0.0]])
    y = ScaleInteger(8, granularity="row").round(x)
    assert y[0, 0] == 100.0 and y[1, 0] == 0.5 and (y[2] == 0).all()
    assert not ScaleInteger(8).saturates(x).any()
    assert torch.equal(ScaleInteger(8, granularity="row").round(x[1]), y[1])
    unsigned = ScaleInteger(8, is_signed=False).round(torch.tensor([255.0, -3.0, 7.2]))
    assert unsigned.tolist() == [255.0, 0.0, 7.0]
    outlier = torch.cat([torch.linspace(0, 1, 1000), torch.tensor([1000.0])])
    cut = ScaleInteger(8, quantile=0.99)
    assert cut.round(outlier)[-1] < 1.01 and cut.saturates(outlier)[-1]
    assert (cut.round(outlier)[:900] - outlier[:900]).abs().max() < 0.005
    with pytest.raises(ConfigError, match="quantile: got 0"):
        ScaleInteger(8, quantile=0.0)
    assert ScaleInteger(8).round(torch.tensor([INF, 2.0, NAN]))[:2].tolist() == [2.0, 2.0]


def test_storage():
    assert MXInt().bits() == MXFP().bits() == 8.25
    assert MXInt(4).bits() == MXFP(4, 2).bits() == 4.25
    assert MXFP(6, 3).bits() == 6.25
    assert BlockFP(8, 8, block_size=16).bits() == 8.5
    assert MXInt().bits((4, 40)) == 8 + 8 * 2 / 40  # a ragged block has a scale too
    x = torch.randn(768, 3072)
    assert MXInt().encode(x).size_bytes * 8 / x.numel() == 8.25
    assert MXInt(4).encode(x).size_bytes * 8 / x.numel() == 4.25
    assert ScaleInteger(8, granularity="channel").bits((768, 3072)) == 8 + 32 / 3072


def test_blocks_along_an_axis():
    weight = torch.randn(8, 16, 3, 3)
    assert MXInt(block_size=16, block_dim=1).encode(weight).scales.numel() == 8 * 9
    vector = torch.randn(50)
    assert torch.equal(MXInt(block_dim=2).round(vector), MXInt().round(vector))


def test_blocks_of_two_axes():
    x = torch.randn(5, 6, 40)
    tiles = MXInt(block_size=[4, 16])
    y = tiles.round(x)
    assert torch.equal(
        y[1, :4, 16:32].flatten(), MXInt(block_size=64).round(x[1, :4, 16:32].flatten())
    )
    assert tiles.encode(x).scales.numel() == 5 * 2 * 3
    activations = torch.randn(6, 40)
    by_sample = MXInt(block_size=[4, 16], skip_first_dim=True).round(activations)
    assert torch.equal(by_sample, MXInt(block_size=16).round(activations))
    assert not torch.equal(by_sample, tiles.round(activations))


LAYOUTS = [
    *(Blocks((4,)), Blocks((4,), 0), Blocks((2, 3)), Blocks((2, 3), 0), Blocks((2, 2, 2), 1)),
    *(Whole("tensor"), Whole("channel"), Whole("row")),
]


@subcases("groups", LAYOUTS)
@subcases("shape", [(), (5,), (3, 5), (2, 3, 5), (2, 3, 4, 5), (2, 0), (0,)])
def test_join_inverts_split(groups, shape):
    x = torch.arange(1, math.prod(shape) + 1).view(shape)
    split = groups.split(x)
    assert torch.equal(groups.join(split, shape), x)
    assert split.flatten(0, -2).size(0) == groups.count(shape)
    assert int((split != 0).sum()) == x.numel()
