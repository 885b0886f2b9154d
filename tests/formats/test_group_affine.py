"""Scales and zero points against exhaustive search, torch's affine quantization, and peers."""

from dataclasses import dataclass

import pytest
import torch

from chop.errors import ConfigError
from chop.formats import GroupAffine, GroupInteger
from chop.formats.affine_scale import AffineScale
from chop.formats.elements import Fixed, Trit
from chop.formats.groups import Blocks
from chop.formats.layout import Layout
from chop.formats.reference import round_by


def snr_db(x, y):
    return (10 * torch.log10(x.square().sum() / (x - y).square().sum())).item()


def normal(group_size=32):
    return torch.randn(256, 6 * group_size, generator=torch.Generator().manual_seed(0))


# HQQ 0.2.8 on normal data in groups of 32, in dB; its scale and zero point take 32 bits
@pytest.mark.parametrize("width, hqq", [(4, 22.6), (3, 16.1), (2, 8.6)])
def test_the_error_is_below_that_of_hqq_with_fewer_bits(width, hqq):
    x = normal()
    number_format = GroupAffine(width, group_size=32)
    assert number_format.bits(x.shape) == width + 0.75
    assert snr_db(x, number_format.round(x)) > hqq + 0.2


@pytest.mark.parametrize("width", [2, 3, 4, 6])
def test_skewed_weights_have_a_smaller_error_than_without_zero_points(width):
    x = normal(48).exp()
    affine, symmetric = GroupAffine(width, group_size=48), GroupInteger(width, group_size=32)
    assert affine.bits(x.shape) == symmetric.bits(x.shape) == width + 0.5
    assert snr_db(x, affine.round(x)) > snr_db(x, symmetric.round(x)) + 1


def restored(number_format, x):
    """The scale and the zero point of each group, and the codes of its values."""
    stored, scaling = number_format.encode(x), number_format.scaling
    count = number_format.groups.count(x.shape)
    scale = scaling.restore(stored.scales, count, None)
    zero = scaling.restore_zero_points(stored.scales, count)
    return scale, zero, number_format.element.unpack(stored.codes, x.numel()).view(count, -1)


@pytest.mark.parametrize("width", range(2, 9))
@pytest.mark.sampled(3)
def test_groups_with_whole_zero_points_are_those_of_torch(width):
    """A value of zero in each group asks for a zero point that torch has, too."""
    x = normal(64)
    x[:, ::64] = 0.0
    number_format = GroupAffine(width)
    scale, zero, codes = restored(number_format, x)
    assert torch.equal(zero, zero.round())
    rows = x.view(-1, 64)
    expected = torch.fake_quantize_per_channel_affine(
        rows, scale.view(-1).float(), zero.view(-1).int(), 0, 0, 2**width - 1
    )
    # torch multiplies by the inverse of the scale, in float32
    assert ((codes.double() - zero) * scale - expected).abs().max() <= scale.max() * 1.001
    assert ((number_format.round(x).view(-1, 64) - expected) == 0).float().mean() > 0.999
    assert (number_format.round(x)[:, ::64] == 0).all()


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.long
def test_the_fit_comes_near_the_best_grid_of_all(width):
    number_format = GroupAffine(width, group_size=16)
    groups = normal(16)[:4].double().view(-1, 16)
    found = (number_format.round(groups) - groups).square().sum(-1)
    spread = groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)
    least = torch.full_like(found, torch.inf)
    last = 2**width - 1
    for share in torch.linspace(0.4, 1.2, 81):
        scale = (spread * share / last).bfloat16().double()
        for zero in torch.arange(0, last + 1e-9, 2.0 ** (width - 8)):
            codes = (groups / scale + zero).round().clamp(0, last)
            least = torch.minimum(least, ((codes - zero) * scale - groups).square().sum(-1))
    assert found.sum() < 1.12 * least.sum()


@pytest.mark.parametrize("width", range(2, 9))
def test_values_that_are_on_a_grid_stay(width):
    generator = torch.Generator().manual_seed(0)
    number_format, last = GroupAffine(width, group_size=16), 2**width - 1
    codes = torch.randint(0, last + 1, (500, 16), generator=generator).float()
    codes[:, 0], codes[:, 1] = 0, last
    zero = torch.randint(1, 256 - 2 ** (8 - width), (500, 1), generator=generator)
    zero = zero * 2.0 ** (width - 8)
    scale = torch.randn(500, 1, generator=generator).abs().bfloat16().float()
    x = (codes - zero) * scale
    assert torch.equal(number_format.round(x), x)


@pytest.mark.parametrize("number_format", [GroupAffine(w, group_size=20) for w in range(2, 9)])
@pytest.mark.sampled(1)
def test_what_was_rounded_rounds_to_itself(number_format):
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(400, 50, generator=generator)
    for x in (
        base,
        base.exp(),
        -base.exp(),
        base * torch.logspace(-30, 30, 400)[:, None],
        base + 0.9 * torch.randn(400, 1, generator=generator) * 4,
        base.sign() * base.abs().pow(6),
        torch.where(base > 0, base, base * 1e-4),
        torch.where(base > 0, base * 1e-3, base),
        base[:, :1].expand(400, 50).contiguous(),
        torch.where(base > 1, base, 0.0),
        base * 1e-38,
        base * 1e-40,
        base * 1e38,
        base.clamp(-3, 3) * 1.1e38,
    ):
        y = number_format.round(x)
        assert torch.equal(number_format.round(y), y)
        assert (y[x == 0] == 0).all()


@pytest.mark.parametrize("width", range(2, 9))
@pytest.mark.parametrize("group_size", [16, 64])
@pytest.mark.sampled(3)
def test_no_group_is_much_worse_than_by_its_range(width, group_size):
    """The scale and zero point that cover the range, with the same precision."""
    x = torch.randn(4000, group_size, generator=torch.Generator().manual_seed(3)).double()
    last, steps = 2**width - 1, 2.0 ** (8 - width)
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale = ((high - low) / last).bfloat16().double()
    zero = ((-low / scale) * steps).round() / steps
    by_range = ((x / scale + zero).round().clamp(0, last) - zero) * scale
    error = (GroupAffine(width, group_size).round(x) - x).square().sum(-1)
    before = (by_range - x).square().sum(-1)
    assert error.sum() < before.sum()
    assert (error > 2 * before).float().mean() < 0.002


@pytest.mark.parametrize("width", [2, 3, 4, 8])
def test_what_a_short_group_lacks_does_not_count(width):
    x = torch.randn(50, 23, generator=torch.Generator().manual_seed(4))
    alone = GroupAffine(width, group_size=23).round(x)
    assert torch.equal(GroupAffine(width, group_size=64).round(x), alone)
    x[:, 5], x[:, 9] = torch.nan, torch.inf
    others = torch.tensor([i for i in range(23) if i not in (5, 9)])
    y = GroupAffine(width, group_size=64).round(x)
    assert torch.equal(y[:, others], GroupAffine(width).round(x[:, others]))
    saturated = GroupAffine(width, group_size=64).saturates(x)
    assert saturated[:, 9].all() and not saturated[:, 5].any()


@pytest.mark.parametrize("width, least", [(2, 33), (3, 33), (4, 34)])
def test_groups_of_one_sign_are_fitted_too(width, least):
    x = 1 + 0.02 * torch.randn(50, 64, generator=torch.Generator().manual_seed(5))
    for values in (x, -x):
        assert snr_db(values, GroupAffine(width).round(values)) > least


@pytest.mark.parametrize("width", range(2, 9))
def test_few_values_may_be_exact(width):
    ternary = torch.randint(-1, 2, (20, 64), generator=torch.Generator().manual_seed(6))
    for x in (torch.ones(4, 64), -torch.ones(4, 64), ternary):
        assert torch.equal(GroupAffine(width).round(3.0 * x), 3.0 * x)


def test_ends_and_empty_tensors():
    number_format = GroupAffine(3, group_size=4)
    assert torch.equal(number_format.round(torch.zeros(9)), torch.zeros(9))
    assert number_format.round(torch.zeros(0, 4)).shape == (0, 4)
    assert number_format.encode(torch.zeros(0, 4)).size_bytes == 0
    x = torch.tensor([torch.inf, 7.0, -torch.inf, 0.0])
    assert torch.equal(number_format.round(x), torch.tensor([7.0, 7.0, 0.0, 0.0]))
    assert torch.equal(number_format.saturates(x), torch.tensor([True, False, True, False]))
    nan = torch.tensor([torch.nan, 7.0, -7.0, 1.0])
    y = number_format.round(nan)
    assert y[0].isnan() and y[1:].isfinite().all()
    stored = number_format.decode(number_format.encode(nan))
    assert torch.equal(stored[1:], y[1:]) and stored[0] == stored.min()


@dataclass(frozen=True)
class Silent(AffineScale):
    """Gives zero points that it does not tell of."""

    zero_width = 0


def test_layouts_that_nobody_could_read_are_refused():
    element, groups = Fixed(4, 0, "unsigned"), Blocks((8,))
    with pytest.raises(ConfigError, match="zero points require elements without a threshold"):
        Layout(Trit(0.5), groups, AffineScale(2))
    with pytest.raises(ConfigError, match="`measure` must return zero points .*`zero_width`"):
        round_by(Layout(element, groups, Silent(4)), torch.randn(8))


@pytest.mark.parametrize("shape", [(6, 100), (2, 3, 64), (5,), (0, 64)], ids=str)
@pytest.mark.parametrize("number_format", [GroupAffine(3), GroupInteger(5)], ids=lambda x: x.name)
def test_codes_without_data_have_the_sizes_of_codes(number_format, shape):
    found, expected = (number_format.encode(torch.zeros(shape, device=d)) for d in ("meta", "cpu"))
    for one, other in ((found.codes, expected.codes), (found.scales, expected.scales)):
        assert one.is_meta
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
