"""The steps of `chop.nn.quantizers.utils`: values and gradients."""

import pytest
import torch

from chop.nn.quantizers.utils import (
    BinaryBipolar,
    BinaryBipolarScaled,
    BinaryZeroOne,
    BinaryZeroScaled,
    my_ceil,
    my_clamp,
    my_floor,
    my_round,
)


@pytest.mark.parametrize(
    "kind, low, scaled",
    [
        (BinaryBipolar, -1.0, False),
        (BinaryBipolarScaled, -1.0, True),
        (BinaryZeroOne, 0.0, False),
        (BinaryZeroScaled, 0.0, True),
    ],
)
@pytest.mark.parametrize("shape", [(5,), (3, 4), (3, 2, 4, 4)])
def test_one_bit_by_a_threshold_in_any_number_of_dimensions(kind, low, scaled, shape):
    x = torch.randn(shape, requires_grad=True)
    y = kind.apply(x, 0.25)
    rows = x.detach().reshape(1 if len(shape) == 1 else shape[0], -1)
    scale = rows.abs().mean(1, keepdim=True) if scaled else torch.ones(len(rows), 1)
    expected = torch.where(rows >= 0.25, scale, low * scale).reshape(shape)
    torch.testing.assert_close(y.detach(), expected)
    y.sum().backward()
    assert torch.equal(x.grad, (x.detach().abs() <= 1).float())


def test_rounding_passes_gradients_and_clamping_stops_them():
    for step, rounded in ((my_round, torch.round), (my_floor, torch.floor), (my_ceil, torch.ceil)):
        x = torch.tensor([-1.5, 0.5, 2.5, 3.7], requires_grad=True)
        step(x).sum().backward()
        assert torch.equal(step(x), rounded(x)) and torch.equal(x.grad, torch.ones(4))
    inf = float("inf")
    assert my_round(torch.tensor([inf, -inf, 1.4])).tolist() == [inf, -inf, 1.0]
    assert BinaryBipolar.apply(torch.tensor([float("nan"), inf]), 0.0).tolist() == [-1.0, 1.0]
    x = torch.tensor([-3.0, 0.5, 4.0], requires_grad=True)
    my_clamp(x, -1, 2).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 0.0]
