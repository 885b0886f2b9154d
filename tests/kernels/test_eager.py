"""PyTorch alone gives the bits of the reference, in float32 wherever that is exact."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from chop.formats import (
    MXFP,
    NVFP4,
    Binary,
    BinaryResidual,
    BlockFP,
    BlockLog,
    Float,
    Integer,
    Log,
    MinifloatDenorm,
    MinifloatIEEE,
    MXInt,
    Ternary,
)
from chop.formats.elements import Sign, Trit
from chop.formats.groups import Whole
from chop.formats.layout import Layout
from chop.formats.scaling import FloatScale
from chop.formats.statistic import LARGEST, MEAN
from chop.kernels import KERNELS, fake_quantize
from chop.kernels import measure as scales
from chop.kernels.eager import fake_quantize as driver
from chop.kernels.eager import levels, measure, round_eagerly
from chop.kernels.eager.chunked import CHUNK, FLOAT32, FLOAT64
from chop.kernels.eager.measure import EagerStatistics
from tests.kernels.examples import DTYPES, INF, NAN, NOT_TAKEN, TAKEN, inputs, params, same
from tests.subcases import subcases

LEFT_ALONE = [
    *NOT_TAKEN,
    BinaryResidual(levels=2, scales=(1.5, -0.25)),
    Binary(scaling_factor=True, scales=(-1.0,)),
]
SERVED = [fmt for fmt in TAKEN if not any(s < 0 for s in getattr(fmt, "scales", None) or ())]

# Found by operations on the whole tensor, as ends of the range are.
ORDER_STATISTICS = [
    fmt
    for fmt in SERVED
    if not (fmt.is_fitted and getattr(fmt, "is_signed", True))
    or getattr(fmt, "quantile", 1) < 1
    or getattr(fmt, "median", None) is True
]


@pytest.fixture
def no_kernels(monkeypatch):
    monkeypatch.setattr("chop.kernels.base.KERNELS", {})


@pytest.fixture
def reals(monkeypatch):
    """What elements were computed in."""
    seen = []
    for name in ("round_alone", "round_scaled"):
        work = getattr(driver, name)

        def spy(*args, rounder, work=work, **more):
            seen.append(rounder.real)
            work(*args, rounder=rounder, **more)

        monkeypatch.setattr(driver, name, spy)
    return seen


def check(fmt, x):
    """Into another tensor, and in place."""
    expected, out = fmt.round(x), torch.full_like(x, 77.0)
    assert round_eagerly(x, fmt, out)
    assert same(out, expected), (fmt.label, x.dtype, x.shape)
    y = x.clone()
    assert round_eagerly(y, fmt, y)
    assert same(y, expected), (fmt.label, x.dtype, x.shape)


@subcases("fmt", params(SERVED), kept=24)
def test_equals_the_reference(fmt):
    for dtype in DTYPES:
        for x in inputs(dtype):
            check(fmt, x)


@subcases("fmt", params(SERVED), kept=24)
def test_equals_the_reference_for_every_magnitude(fmt):
    for exponent in range(-150, 126, 25):
        check(fmt, torch.randn(24, 40) * 2.0**exponent)
    spread = torch.randn(24, 40) * torch.exp2(torch.randint(-149, 127, (24, 1)).float())
    check(fmt, spread)
    check(fmt, spread.mT.contiguous())


@pytest.mark.parametrize("fmt", params(SERVED[::3] + SERVED[-34:]))
@pytest.mark.sampled(3)
def test_chunks_do_not_show(fmt):
    rows, line = torch.randn(300, 257), torch.randn(2 * CHUNK + 33)
    rows[140, 3], rows[141], rows[5], line[CHUNK + 1] = NAN, 2.0**125, 2.0**-140, -INF
    for x in (rows, line, line[: 2 * CHUNK].view(2, CHUNK), rows.bfloat16(), line.half()):
        check(fmt, x)


@subcases("fmt", params(SERVED[::4] + SERVED[-34:]))
def test_layout_does_not_matter(fmt, no_kernels):
    x = torch.randn(4, 6, 5, 32)
    expected = fmt.round(x)
    slices = torch.randn(8, 6, 10, 64)[::2, :, 1::2, ::2]
    for other in (x.to(memory_format=torch.channels_last), x.mT.contiguous().mT, x.clone()):
        out = torch.empty_like(x)
        assert same(fake_quantize(other, fmt), expected)
        assert same(fake_quantize(other, fmt, out), expected)
        assert same(fake_quantize(other, fmt, other), expected)
    gap = torch.zeros(4, 6, 5, 64)
    fake_quantize(slices, fmt, gap[..., ::2])
    assert same(gap[..., ::2], fmt.round(slices))
    assert (gap[..., 1::2] == 0).all()


@pytest.mark.parametrize("fmt", params(LEFT_ALONE))
def test_the_rest_goes_to_the_reference(fmt, no_kernels):
    x = torch.randn(20, 32)
    out = torch.full_like(x, 77.0)
    assert not round_eagerly(x, fmt, out)
    assert (out == 77).all()
    torch.manual_seed(1)
    y = fake_quantize(x, fmt)
    torch.manual_seed(1)
    assert same(y, fmt.round(x))


def test_odd_inputs_go_to_the_reference(no_kernels):
    for x in (torch.empty(0), torch.empty(3, 0, 2), torch.randn(5).double()):
        assert not round_eagerly(x, MXInt(), torch.empty_like(x))
        assert torch.equal(fake_quantize(x, MXInt()), MXInt().round(x))


def test_it_is_what_kernels_leave(monkeypatch):
    seen = []
    monkeypatch.setattr("chop.kernels.base.round_eagerly", lambda *a: seen.append(a) or False)
    monkeypatch.setattr("chop.kernels.cpu.fake_quantize.is_ready", lambda: False)
    x = torch.randn(6, 32, requires_grad=True)
    assert same(MXInt(4)(x).detach(), MXInt(4).round(x.detach()))
    assert len(seen) == 1
    monkeypatch.setitem(KERNELS, "cpu", None)
    fake_quantize(x.detach(), MXInt(4))
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("fmt", "real"),
    [
        (MinifloatIEEE(8, 4), FLOAT32),
        (MinifloatIEEE(16, 5), FLOAT32),
        (MinifloatIEEE(32, 8), FLOAT64),  # a significand of all 24 bits
        (MinifloatIEEE(8, 4, 150), FLOAT64),  # subnormal in float32
        (MinifloatIEEE(8, 5, -100), FLOAT64),  # the magic number would be infinite
        (MinifloatDenorm(8, 4), FLOAT32),
        (Log(8), FLOAT32),
        (Log(9), FLOAT64),
        (BlockFP(8), FLOAT32),
        (BlockFP(23), FLOAT32),
        (BlockFP(24), FLOAT64),
        (BlockLog(8), FLOAT32),
        (MXInt(8), FLOAT32),
        (MXFP(8, 5), FLOAT32),
    ],
    ids=lambda value: getattr(value, "label", ""),
)
def test_float32_is_used_where_it_is_exact(fmt, real, reals):
    check(fmt, torch.randn(64, 64))
    assert set(reals) == {real}


def test_a_power_without_an_inverse_takes_float64(reals):
    check(BlockFP(8, 8, 128), torch.randn(64, 64) * 2.0**-135)  # 2^-128 has none
    assert set(reals) == {FLOAT64}


class LargestOperands(TorchDispatchMode):
    """Elements of the largest tensor that each operator was given."""

    def __init__(self):
        super().__init__()
        self.elements = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        largest = max((x.numel() for x in args if isinstance(x, torch.Tensor)), default=0)
        name = func.overloadpacket.__name__.rstrip("_")
        self.elements[name] = max(largest, self.elements.get(name, 0))
        return func(*args, **(kwargs or {}))


# Scales are found for all blocks at once; here they are too many.
MANY_SCALES = [fmt for fmt in SERVED if fmt.name == "nvfp4" or getattr(fmt, "block_size", 0) == 1]


@subcases("fmt", params(fmt for fmt in SERVED if fmt not in MANY_SCALES))
def test_nothing_waits_for_other_threads(fmt):
    x = torch.randn(2 * CHUNK)
    with LargestOperands() as seen:
        assert round_eagerly(x, fmt, torch.empty_like(x))
    assert len(seen.elements) > 3
    for name in ("round", "floor", "ceil", "trunc"):  # divided from 2048 elements on
        assert seen.elements.get(name, 0) < 2048, name
    if fmt in ORDER_STATISTICS:
        return
    for name in ("add", "sub", "mul", "bitwise_and", "clamp", "abs", "hardshrink"):  # from 2^15 on
        assert seen.elements.get(name, 0) <= CHUNK, name


def loose(bounds):
    def looser(*args):
        low, high = bounds(*args)
        return low * 0.9, high * 1.1

    return looser


@pytest.mark.parametrize(
    "fmt",
    [Binary(scaling_factor=True), Ternary(), Ternary(scaling_factor=True), BinaryResidual()],
    ids=lambda fmt: fmt.label,
)
def test_means_that_are_not_certain_are_the_references(fmt, monkeypatch):
    asked = []
    monkeypatch.setattr(measure, "bounds", loose(measure.bounds))
    monkeypatch.setattr(levels, "bounds", measure.bounds)
    for module, name in ((scales, "by_reference"), (levels, "mean_magnitude")):
        exact = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, f=exact: asked.append(1) or f(*a))
    check(fmt, torch.randn(7, 33))
    assert bool(asked) == (fmt != Ternary())


def test_a_mean_between_two_floats_is_not_certain():
    tie = torch.tensor([[1.0, 1 + 2**-23], [1.0, 1.0], [1.0, INF]])
    low, high = EagerStatistics().mean_bounds(tie)
    assert (low.float() == high.float()).tolist() == [[False], [True], [False]]
    assert ((low <= tie.double().mean(1, True)) & (tie.double().mean(1, True) <= high))[:2].all()
    layout = Layout(Sign(True, False), Whole("row"), FloatScale(MEAN))
    assert EagerStatistics().scales(tie, layout).tolist() == [[1.0], [1.0], [1.0]]


def test_statistics_are_of_finite_magnitudes():
    lines = torch.tensor([[-3.0, 1.0, 0.5], [NAN, 2.0, -1.0], [INF, -INF, NAN], [0.0, -0.0, 0.0]])
    largest = EagerStatistics().scales(
        lines, Layout(Sign(True, False), Whole("row"), FloatScale(LARGEST))
    )
    assert largest.flatten().tolist() == [3.0, 2.0, 0.0, 0.0]
    assert not largest.signbit().any()
    layout = Layout(Trit(0.75), Whole("row"), FloatScale(MEAN))
    assert EagerStatistics().scales(lines, layout).flatten().tolist() == [2.0, 1.5, 0.0, 0.0]
    by_median = EagerStatistics().fitted(Ternary(median=True).layout(), lines)
    assert by_median.element.threshold == pytest.approx(0.7 * 0.5)


def test_formats_that_change_nothing_are_not_copied(no_kernels):
    x = torch.randn(3, 4)
    assert torch.equal(fake_quantize(x, Float()), x)
    assert fake_quantize(x, NVFP4(), x) is x
    assert torch.equal(fake_quantize(torch.tensor(1.3), Integer(8, 4)), torch.tensor(1.3125))


def test_large_results_are_written_whole():
    x = torch.randn(1 + 2**22)  # more than large pages are asked for
    out = torch.full((2**22 + 3,), 77.0)
    assert round_eagerly(x, Integer(8, 4), out[1:-1])
    assert same(out[1:-1], Integer(8, 4).round(x))
    assert out[0] == out[-1] == 77
