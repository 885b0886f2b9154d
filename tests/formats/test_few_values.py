"""One bit, sums of bits, and three values."""

import pytest
import torch

from chop.errors import ConfigError
from chop.formats import Binary, BinaryResidual, Ternary


@pytest.mark.parametrize("shape", [(), (7,), (4, 6), (2, 3, 4), (2, 3, 4, 5)])
def test_binary_of_any_rank(shape):
    x = torch.randn(shape)
    sign = torch.where(x >= 0, 1.0, -1.0)
    assert torch.equal(Binary().round(x), sign)
    assert torch.equal(Binary(bipolar=False).round(x), (sign + 1) / 2)
    channels = x.reshape(shape[0], -1) if len(shape) > 1 else x.reshape(1, -1)
    scale = channels.double().abs().mean(1, keepdim=True).float()
    expected = (torch.where(channels >= 0, 1.0, -1.0) * scale).view(shape)
    assert torch.equal(Binary(scaling_factor=True).round(x), expected)
    assert Binary().round(torch.tensor([0.0, -0.0])).tolist() == [1.0, 1.0]


def test_stochastic_binary_draws_with_the_right_probability():
    x = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.6, 1.0, 3.0]).repeat(20_000, 1)
    mean = Binary(stochastic=True).round(x).mean(0)
    torch.testing.assert_close(mean, x[0].clamp(-1, 1), atol=0.02, rtol=0)
    zero_one = Binary(stochastic=True, bipolar=False).round(x).mean(0)
    torch.testing.assert_close(zero_one, (x[0].clamp(-1, 1) + 1) / 2, atol=0.02, rtol=0)
    torch.manual_seed(3)
    first = Binary(stochastic=True)(x)
    torch.manual_seed(3)
    assert torch.equal(Binary(stochastic=True)(x), first)
    assert not torch.equal(Binary(stochastic=True)(x), first)


def test_residuals_are_summed_level_by_level():
    x = torch.randn(50, 20).double()
    rest, total = x.clone(), torch.zeros_like(x)
    errors = []
    for level in range(1, 5):
        scale = rest.abs().mean().float().double()
        step = scale * torch.where(rest >= 0, 1.0, -1.0)
        rest, total = rest - step, total + step
        assert torch.equal(BinaryResidual(levels=level).round(x), total)
        errors.append((total - x).square().mean().item())
    assert errors == sorted(errors, reverse=True)
    single = BinaryResidual(residual_sign=False, levels=3)
    assert torch.equal(single.round(x), BinaryResidual(levels=1).round(x))
    given = BinaryResidual(levels=2, scales=[2, 1]).round(torch.tensor([9.0, 0.5, -1.5, -9.0]))
    assert given.tolist() == [3.0, 1.0, -1.0, -3.0]
    assert BinaryResidual(levels=3).encode(x).size_bytes == 1000 * 3 / 8 + 3 * 4
    with pytest.raises(ConfigError, match="expected 2, one for each level, got 1"):
        BinaryResidual(scales=[1.0])


def test_ternary_thresholds():
    x = torch.randn(8, 30)
    mean = x.double().abs().mean()
    keeps = {
        Ternary(): x.double().abs() > 0.7 * mean,
        Ternary(mean=0.5): x.abs() > 0.35,
        Ternary(median=True): x.double().abs() > 0.7 * x.double().abs().median(),
        Ternary(max=True): x.double().abs() > 0.05 * x.double().abs().max(),
        Ternary(max=4.0): x.double().abs() > 0.2,
        Ternary(threshold=1.0): x.abs() > 1.0,
    }
    for fmt, kept in keeps.items():
        assert torch.equal(fmt.round(x), torch.where(kept, x.sign(), 0.0))
    assert Ternary(threshold=0.5).round(torch.tensor([0.5, -0.5, 0.51])).tolist() == [0, 0, 1]
    kept = keeps[Ternary()]
    scale = torch.stack([row[k].double().abs().mean() for row, k in zip(x, kept, strict=True)])
    expected = torch.where(kept, x.sign(), 0) * scale.float()[:, None]
    assert torch.equal(Ternary(scaling_factor=True).round(x), expected)
    with pytest.raises(ConfigError, match=r"ternary.threshold: got -1.0, expected 0 or more"):
        Ternary(threshold=-1.0)
    with pytest.raises(ConfigError, match="expected one threshold, got mean and max"):
        Ternary(mean=True, max=0.5)


def test_ternary_of_any_rank_takes_a_fifth_of_a_byte():
    for shape in [(), (7,), (2, 3, 4), (2, 3, 4, 5)]:
        x = torch.randn(shape)
        fmt = Ternary(scaling_factor=True)
        assert fmt.round(x).unique().numel() <= 2 * (shape[0] if len(shape) > 1 else 1) + 1
    assert Ternary().encode(torch.randn(1000)).size_bytes == 200
    assert Ternary().bits() == 1.6
    assert Ternary(scaling_factor=True).bits((10, 100)) == 1.6 + 0.32


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Binary(width=8), "binary.width: got 8, expected 1 to 1 bit"),
        (lambda: Binary(stochastic="yes"), "stochastic: expected bool"),
        (lambda: BinaryResidual(levels=0), "levels: got 0"),
        (lambda: Ternary(width=3), "ternary.width: got 3"),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
