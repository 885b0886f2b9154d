"""Learned scales: the gradients against formulas of their own, and what can be learned at all."""

import math

import pytest
import torch

from chop.errors import ConfigError
from chop.formats import (
    FP8,
    Binary,
    BinaryResidual,
    Integer,
    MXInt,
    QuantSpec,
    ScaleInteger,
    Ternary,
    from_key,
    initial_scales,
    lsq_fake_quantize,
    reference,
)
from chop.formats.lsq import in_use, learnable_names, learns

SIGNS = [
    Binary(scaling_factor=True),
    Binary(scaling_factor=True, bipolar=False),
    BinaryResidual(levels=3),
    Ternary(scaling_factor=True, threshold=0.3),
]
LEARNABLE = [
    ScaleInteger(3),
    ScaleInteger(4, granularity="channel"),
    ScaleInteger(2, is_signed=False),
    *SIGNS,
    ScaleInteger(3, is_symmetric=False),
    FP8(granularity="channel"),
]
ALL = pytest.mark.parametrize("fmt", LEARNABLE, ids=lambda fmt: fmt.label.replace(" ", "-"))


def sample(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def gradients(fmt, x, scales, upstream, is_batch=False):
    x, scales = x.clone().requires_grad_(), scales.clone().requires_grad_()
    y = lsq_fake_quantize(x, scales, fmt, is_batch)
    return torch.autograd.grad((y * upstream).sum(), (x, scales))


def lsq(x, s, lowest, largest, count):
    """The pseudo-code of the paper's appendix A, gradients by autograd."""
    share = 1 / math.sqrt(count * largest)
    s = (s - s * share).detach() + s * share
    v = (x / s).clamp(lowest, largest)
    return ((v.round() - v).detach() + v) * s


@pytest.mark.parametrize("fmt", LEARNABLE[:3], ids=lambda fmt: fmt.label)
@pytest.mark.parametrize("is_batch", [False, True])
def test_step_sizes_have_the_gradient_of_the_lsq_paper(fmt, is_batch):
    x, upstream = sample(6, 50).double(), sample(6, 50).double().flip(0)
    s = initial_scales(fmt, x).double()
    per_sample = x.numel() / s.numel() / (6 if is_batch else 1)
    largest = fmt.element.largest_code
    xs, ss = x.clone().requires_grad_(), s.clone().requires_grad_()
    y = lsq(xs, ss.view(-1, 1), -largest if fmt.is_signed else 0, largest, per_sample)
    expected = torch.autograd.grad((y * upstream).sum(), (xs, ss))
    found = gradients(fmt, x, s, upstream, is_batch)
    torch.testing.assert_close(fmt.round_by(x, s.float()), y.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-5)


@ALL
def test_scales_have_the_slope_of_a_finite_difference_with_rounding_held(fmt):
    x, upstream = sample(4, 30).double(), sample(4, 30).double().flip(1)
    s = initial_scales(fmt, x).double()

    def loss(index, change):
        """Elements stay what they are for `s`; in range, so does the rounding error x/s - k."""
        moved = s.clone()
        moved[index] += change
        if isinstance(fmt, BinaryResidual):
            signs, _ = reference._signs_and_scales(fmt.layout().with_scales(s.float()), x)
            y = sum(moved[level] * sign for level, sign in enumerate(signs))
        else:
            rows = s.view(-1, 1)
            k = fmt.round_by(x, s.float()) / rows
            inside = torch.zeros_like(x, dtype=torch.bool)
            if isinstance(fmt, ScaleInteger | FP8):
                element = fmt.layout().element
                inside = (x / rows > element.lowest) & (x / rows < element.highest)
            y = moved.view(-1, 1) * (k - inside * x / rows) + inside * x
        return (y * upstream).sum()

    step = 1e-4
    slopes = [(loss(i, step) - loss(i, -step)) / (2 * step) for i in range(s.numel())]
    share = 1 / math.sqrt(x.numel() / s.numel() * fmt.layout().element.largest)
    found = gradients(fmt, x, s, upstream)[1]
    torch.testing.assert_close(found, torch.stack(slopes) * share, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fmt", SIGNS, ids=lambda fmt: fmt.label)
def test_signs_pass_the_gradient_up_to_what_they_can_reach(fmt):
    x, upstream = sample(4, 30), sample(4, 30).flip(1)
    s = initial_scales(fmt, x)
    limit = s.sum() if isinstance(fmt, BinaryResidual) else s.view(-1, 1)
    found = gradients(fmt, x, s, upstream)[0]
    assert torch.equal(found, torch.where(x.abs() <= limit, upstream, 0))
    assert 0 < (found == 0).sum() < x.numel()


@ALL
def test_given_scales_are_learned_scales(fmt):
    x = sample(5, 40)
    s = initial_scales(fmt, x) * 1.3
    settled = fmt.with_scales(s)
    assert from_key(settled.key) == settled and len(settled.scales) == len(s)
    expected = lsq_fake_quantize(x, s, fmt, False)
    assert torch.equal(settled.round(x), expected)
    assert torch.equal(settled(x), expected)
    assert torch.equal(settled.decode(settled.encode(x)), expected)
    assert torch.equal(initial_scales(settled, x), s)
    assert not torch.equal(fmt.round(x), expected)
    large = sample(5, 2**15)  # kernels take over, and references go in parts
    assert torch.equal(settled(large), settled.round(large))
    assert torch.equal(lsq_fake_quantize(large, s, fmt, False), settled.round(large))


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.sampled(3)
def test_is_a_wellformed_torch_operator(fmt, dtype):
    x = sample(3, 8).to(dtype).requires_grad_()
    s = initial_scales(fmt, x.detach()).requires_grad_()
    assert s.dtype == torch.float32 and (s > 0).all()
    torch.library.opcheck(torch.ops.chop.lsq_fake_quantize.default, (x, s, fmt.key, True))
    y = lsq_fake_quantize(x.mT, initial_scales(fmt, x.detach().mT), fmt, True)
    assert y.dtype == dtype and y.stride() == x.mT.stride()


@ALL
def test_one_scale_for_all_rows_serves_any_batch(fmt):
    x = sample(6, 20)
    s = initial_scales(fmt, x.reshape(1, -1))
    y = lsq_fake_quantize(x, s, fmt, True)
    assert torch.equal(y[:2], lsq_fake_quantize(x[:2], s, fmt, True))
    assert fmt.with_scales(s).round(x[:0]).shape == (0, 20)


@ALL
def test_zeros_infinities_and_scales_that_a_step_took_below_zero(fmt):
    assert (initial_scales(fmt, torch.zeros(2, 3)) > 0).all()
    s = initial_scales(fmt, sample(2, 8))
    x = torch.tensor([[math.inf, -math.inf, 0.0, -0.0], [1e30, -1e30, 0.5, 1e-42]])
    assert lsq_fake_quantize(x, s, fmt, False).isfinite().all()
    x, upstream = sample(2, 8), sample(2, 8).flip(1)
    assert torch.equal(lsq_fake_quantize(x, -s, fmt, False), fmt.round_by(x, s))
    positive, negative = gradients(fmt, x, s, upstream), gradients(fmt, x, -s, upstream)
    assert torch.equal(negative[1], -positive[1])
    assert (in_use(torch.zeros(2)) > 0).all()


def test_the_usual_starts():
    x = sample(4, 100)
    expected = 2 * x.abs().mean(1) / math.sqrt(7)
    torch.testing.assert_close(initial_scales(ScaleInteger(4, granularity="channel"), x), expected)
    torch.testing.assert_close(initial_scales(SIGNS[0], x), x.abs().mean(1))
    first = x.abs().mean()
    second = (x - first * x.sign()).abs().mean()
    torch.testing.assert_close(initial_scales(BinaryResidual(), x), torch.stack([first, second]))
    kept = torch.stack([row[row.abs() > 0.3].abs().mean() for row in x])
    torch.testing.assert_close(initial_scales(SIGNS[3], x), kept)


def test_what_can_be_learned():
    named = {"binary", "binary_residual", "fp8", "scale_integer", "ternary"}
    assert set(learnable_names()) == named == {fmt.name for fmt in LEARNABLE}
    assert not any(learns(fmt) for fmt in (Binary(), Ternary(), Integer(8, 4), MXInt()))
    assert not learns(ScaleInteger(4, granularity="group"))
    assert not learns(Binary(scaling_factor=True, stochastic=True))


def test_operands_that_cannot_learn_pass_gradients_and_one_has_to():
    mixed = QuantSpec(MXInt(), ScaleInteger(4), gradient="lsq")
    assert mixed.lsq_operands == ["weight"]
    assert mixed.keeping("data_in") == QuantSpec(MXInt())
    assert mixed.only(("weight",)).gradient == "lsq"
    assert QuantSpec(gradient="lsq").is_float
    with pytest.raises(
        ConfigError, match="weight=integer 8.4 has no learnable scale.*scale_integer"
    ):
        QuantSpec(weight=Integer(8, 4), gradient="lsq")
    with pytest.raises(ConfigError, match="binary .*scaling_factor=True"):
        QuantSpec.parse({"name": "binary", "gradient": "lsq"})
    assert QuantSpec.parse({"name": "binary_residual", "gradient": "lsq"}).lsq_operands == [
        "data_in",
        "weight",
        "bias",
    ]


def test_given_scales_that_do_not_fit():
    for scales, message in [((), "one or more"), ((math.nan,), "finite"), ((math.inf,), "finite")]:
        with pytest.raises(ConfigError, match=message):
            ScaleInteger(4, scales=scales)
    with pytest.raises(ConfigError, match="expected one, or one for each of the 3 groups.*got 2"):
        ScaleInteger(4, granularity="channel", scales=(1.0, 2.0)).round(sample(3, 4))
    for kind in (Binary, Ternary):
        with pytest.raises(ConfigError, match="scaling_factor=True"):
            kind(scales=(1.0,))
    assert "scales=40 values" in ScaleInteger(4, scales=(1.0,) * 40).label
