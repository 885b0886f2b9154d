"""Fitted scales of NVFP4 against a search by its definition in NumPy."""

import numpy as np
import pytest
import torch

from chop.formats import NVFP4, parse_format_string

MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
FITTED = NVFP4(scale="mse")


def weights(rows=64):
    return torch.randn(rows, 64, generator=torch.Generator().manual_seed(0)) * 0.02


def least_errors(x):
    """Squared error of each block, by the best e4m3 scale that maps its largest value to 4 to 8."""
    x = x.double().numpy().reshape(-1, 16)
    amax = np.abs(x).max(1)
    unit = np.float64(np.float32(amax.max() / (448 * 6)))
    best = np.full(len(x), np.inf)
    for target in np.arange(4, 8.5, 0.5):
        wanted = torch.from_numpy(amax / target / unit).clamp(max=448)
        scale = wanted.to(torch.float8_e4m3fn).double().numpy()[:, None] * unit
        distance = np.abs(np.abs(x / scale)[..., None] - MAGNITUDES)
        error = np.copysign(MAGNITUDES[distance.argmin(-1)], x) * scale - x
        best = np.minimum(best, (error**2).sum(1))
    return best


def test_every_block_has_the_least_error_of_the_candidates():
    x = weights()
    error = (FITTED.round(x.double()) - x.double()).square().view(-1, 16).sum(1).numpy()
    is_largest = (x.abs().view(-1, 16).amax(1) == x.abs().max()).numpy()
    np.testing.assert_allclose(error[~is_largest], least_errors(x)[~is_largest], rtol=1e-9)
    plain = (NVFP4().round(x.double()) - x.double()).square().view(-1, 16).sum(1).numpy()
    assert (error <= plain).all() and error.sum() < 0.8 * plain.sum()


def test_the_numbers_have_the_form_of_nvfp4():
    x = weights()
    fitted, plain = FITTED.encode(x), NVFP4().encode(x)
    assert torch.equal(fitted.tensor_scale, plain.tensor_scale)
    assert fitted.scales.shape == plain.scales.shape and fitted.scales.dtype == plain.scales.dtype
    assert torch.equal(NVFP4().decode(fitted), FITTED.round(x))
    assert FITTED.bits(x.shape) == NVFP4().bits(x.shape)


def test_rounded_values_stay():
    once = FITTED.round(weights())
    assert torch.equal(FITTED.round(once), once)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_block_that_is_not_finite_is_nan_and_affects_no_other(value):
    x = weights(2)
    x[1, 40] = 1.0  # the largest of the tensor is in another block
    changed = x.clone()
    changed[0, 3] = value
    rounded = FITTED.round(changed)
    assert rounded[0, :16].isnan().all() and rounded.isnan().sum() == 16
    assert torch.equal(rounded.view(-1, 16)[1:], FITTED.round(x).view(-1, 16)[1:])


def test_zeros_and_format_strings():
    assert torch.equal(FITTED.round(torch.zeros(3, 16)), torch.zeros(3, 16))
    assert FITTED.round(torch.zeros(0, 16)).shape == (0, 16)
    assert parse_format_string("nvfp4:scale=mse") == FITTED
