"""Offsets and factors of one weight: what they start from, what they reach, and their codes."""

import itertools

import pytest
import torch

from chop.formats import parse_format_string
from chop.quantization.rounding.learned_weights import LearnedWeight, why_not_learnable
from tests.subcases import subcases

FORMATS = (
    "group_integer:width=3",
    "group_integer:width=4:group_size=7",
    "group_affine:width=4:group_size=48",
    "group_affine:width=2:group_size=32",
    "mxint:width=4",
    "mxint:width=3:block_size=7",
    "mxfp:width=4",
    "mxfp:width=6",
    "nvfp4",
    "nvfp4:scale=mse",
    "block_fp:width=4",
    "scale_integer:width=3:granularity=group:group_size=32",
    "scale_integer:width=4:granularity=channel",
    "scale_integer:width=4",
    "integer:width=4:frac_width=5",
)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def learned(text, weight, inputs, steps=100, start=None):
    """A weight whose outputs follow those of the float one, its loss at first and at last."""
    number_format = parse_format_string(text)
    start = number_format.round(weight) if start is None else start
    found = LearnedWeight(number_format, weight, start, None)

    def loss(rounded):
        return ((rounded - weight).float() @ inputs.T).square().mean()

    for step in range(steps):
        values = found.values().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(values), values)
        found.learn(gradient, (1 - step / steps) / steps)
    rounded = found.rounded(weight)
    return rounded, loss(start).item(), loss(number_format.round(rounded)).item()


@subcases("text", FORMATS)
def test_learning_starts_at_the_start(text):
    number_format, weight = parse_format_string(text), drawn(24, 80) / 20
    start = number_format.round(weight)
    found = LearnedWeight(number_format, weight, start, None)
    torch.testing.assert_close(found.values(), start, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.rounded(weight), start, rtol=1e-6, atol=0)


@subcases("text", FORMATS)
def test_the_output_comes_nearer_and_codes_are_found_again(text):
    number_format, weight = parse_format_string(text), drawn(24, 80) / 20
    inputs = drawn(300, 8, seed=1) @ drawn(8, 80, seed=2) + 0.1 * drawn(300, 80, seed=3)
    rounded, before, after = learned(text, weight, inputs)
    assert after < 0.8 * before
    encoded = number_format.encode(rounded)
    again = number_format.encode(number_format.decode(encoded))
    assert torch.equal(encoded.codes, again.codes) or "nvfp4" in text
    # Groups whose scale would not be found again are the float ones.
    is_kept = rounded == weight
    torch.testing.assert_close(
        number_format.decode(encoded)[~is_kept], rounded[~is_kept], rtol=1e-6, atol=0
    )
    assert is_kept.float().mean() < 0.3


@subcases("width", [2, 3, 4, 5, 8])
def test_any_codes_of_searched_scales_are_found_again(width):
    half = 2 ** (width - 1)
    generator = torch.Generator().manual_seed(width)
    codes = torch.randint(-half, half, (400, 32), generator=generator)
    few = (codes % 3 == 0) * codes.sign()
    scales = (drawn(400, 1) / 50).bfloat16().float()
    for found in (codes, few, 0 * codes, codes.clamp(-1, 1)):
        weight = found * scales
        number_format = parse_format_string(f"group_integer:width={width}")
        assert torch.equal(number_format.round(weight), weight)


@subcases("dtype", [torch.float16, torch.bfloat16])
def test_halves(dtype):
    weight = (drawn(16, 64) / 20).to(dtype)
    inputs = drawn(200, 8, seed=1) @ drawn(8, 64, seed=2)
    for text in ("mxint:width=4", "group_integer:width=3", "mxfp:width=4"):
        rounded, before, after = learned(text, weight, inputs)
        assert rounded.dtype == dtype and after < before


def test_a_weight_that_starts_elsewhere_keeps_its_codes_until_it_learns():
    number_format, weight = parse_format_string("mxint:width=4"), drawn(8, 64) / 20
    start = number_format.round(weight + 0.02 * drawn(8, 64, seed=4).sign())
    same = number_format.layout().scaling
    exponents = [
        same.measure(number_format.layout().split(x.double())).codes for x in (weight, start)
    ]
    rows = (exponents[0] == exponents[1]).all(1)[:, 0]
    weight, start = weight[rows], start[rows]
    assert len(weight) >= 2 and not torch.equal(number_format.round(weight), start)
    found = LearnedWeight(number_format, weight, start, None)
    anchors = number_format.layout().groups.join(
        same.anchors(number_format.layout().split(weight.double())), weight.shape
    )
    torch.testing.assert_close(found.values(), start, rtol=0, atol=0)
    found.learn(torch.full_like(weight, torch.nan), 0.3)
    torch.testing.assert_close(found.values(), start, rtol=0, atol=0)
    found.learn(torch.ones_like(weight), 0.5)
    assert (found.values() <= start).all() and (found.values() < start)[~anchors].any()


def test_fixed_weights_keep_their_codes():
    number_format, weight = parse_format_string("mxint:width=4"), drawn(8, 64) / 20
    fixed = torch.rand(8, 64, generator=torch.Generator().manual_seed(0)) > 0.5
    start = number_format.round(weight)
    found = LearnedWeight(number_format, weight, start, fixed)
    found.learn(torch.ones_like(weight), 0.5)
    assert torch.equal(found.values()[fixed], start[fixed])
    assert (found.values() != start).any()


@pytest.mark.parametrize("text", ["ternary", "binary", "log:width=4", "float"])
def test_what_has_no_steps_is_told(text):
    assert why_not_learnable(parse_format_string(text)) is not None


@subcases("seed", range(8))
def test_two_columns_come_near_the_best_of_all_choices(seed):
    """Beside an exhaustive search over the neighbors of every weight on its own grid."""
    text = "integer:width=4:frac_width=2"
    weight = drawn(1, 2, seed=seed)
    mix = torch.tensor([[1.0, 0.9], [0.0, 0.3]])
    inputs = drawn(64, 2, seed=seed + 50) @ mix
    rounded, before, after = learned(text, weight, inputs, steps=200)
    steps = [[(w * 4).floor() / 4, (w * 4).ceil() / 4] for w in weight[0]]
    choices = [torch.stack(pair)[None] for pair in itertools.product(*steps)]
    losses = [((x - weight) @ inputs.T).square().mean().item() for x in choices]
    assert min(after, before) <= 1.6 * min(losses)
    assert any(torch.equal(rounded, x) for x in choices)
