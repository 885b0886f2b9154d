"""Losses against a teacher, beside those of torch."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Bernoulli, kl_divergence

from chop.train.distillation import soft_losses
from chop.train.distillation.soft_losses import (
    binary_divergence,
    class_divergence,
    pixel_divergence,
    squared_difference,
)
from chop.train.task import IGNORED

NONE = torch.empty(0)


def pair(*shape, dtype=torch.float64):
    draw = torch.Generator().manual_seed(0)
    x, y = (3 * torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(2))
    return x.to(dtype).requires_grad_(), y.to(dtype)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_classes_have_the_value_and_gradient_of_kl_div(temperature):
    x, y = pair(7, 5)
    other = x.detach().clone().requires_grad_()
    mine = class_divergence(x, y, NONE, temperature)
    target = (y / temperature).softmax(-1)
    theirs = F.kl_div((other / temperature).log_softmax(-1), target, reduction="batchmean")
    theirs = temperature**2 * theirs
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(mine, x)[0],
        torch.autograd.grad(theirs, other)[0],
        rtol=1e-9,
        atol=1e-15,
    )
    assert torch.autograd.gradcheck(lambda x: class_divergence(x, y, NONE, temperature), x)


@pytest.mark.parametrize("loss", [class_divergence, binary_divergence, squared_difference])
def test_a_model_that_is_its_teacher_has_no_loss_and_no_gradient(loss):
    x, _ = pair(7, 5)
    value = loss(x, x.detach().clone(), NONE, 2.0)
    (slope,) = torch.autograd.grad(value, x)
    assert value.item() == 0.0 and slope.abs().max() < 1e-15


def test_many_logits_are_compared_in_parts(monkeypatch):
    x, y = pair(7, 5)
    whole = class_divergence(x, y, NONE, 2.0)
    (slope,) = torch.autograd.grad(whole, x)
    monkeypatch.setattr(soft_losses, "LOGITS", 12)
    parts = class_divergence(x, y, NONE, 2.0)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(parts, x)[0], slope, rtol=1e-9, atol=1e-15)
    assert class_divergence(x.detach(), y, NONE, 2.0).item() == pytest.approx(whole.item())


def test_gradients_of_a_high_temperature_are_those_of_centered_squares():
    # Hinton et al. 2015, equation 4: dC/dz = (z - v) / (N T^2), times T^2, for centered logits.
    x, y = pair(6, 4)
    (slope,) = torch.autograd.grad(class_divergence(x, y, NONE, 1e5), x)
    centered = (x - x.mean(-1, keepdim=True)) - (y - y.mean(-1, keepdim=True))
    torch.testing.assert_close(slope, centered.detach() / 4 / 6, rtol=1e-3, atol=1e-5)


def test_binary_answers_have_the_divergence_of_bernoulli_distributions():
    x, y = pair(6, 3)
    expected = kl_divergence(Bernoulli(logits=y / 2), Bernoulli(logits=x / 2)).mean() * 4
    torch.testing.assert_close(binary_divergence(x, y, NONE, 2.0), expected, rtol=1e-12, atol=0)
    two = torch.stack([torch.zeros_like(x), x], -1).flatten(0, 1)
    other = torch.stack([torch.zeros_like(y), y], -1).flatten(0, 1)
    torch.testing.assert_close(
        class_divergence(two, other, NONE, 2.0), expected, rtol=1e-12, atol=0
    )
    assert torch.autograd.gradcheck(lambda x: binary_divergence(x, y, NONE, 2.0), x)


def test_sure_binary_answers_stay_finite():
    x = torch.tensor([200.0, -200.0, 200.0], requires_grad=True)
    loss = binary_divergence(x, torch.tensor([200.0, -200.0, -200.0]), NONE, 1.0)
    (slope,) = torch.autograd.grad(loss, x)
    assert loss.item() == pytest.approx(200 / 3) and slope.tolist() == [0, 0, pytest.approx(1 / 3)]


def test_pixels_that_do_not_count_have_no_part():
    x, y = pair(2, 4, 4, 3)
    labels = torch.zeros(2, 4, 4, dtype=torch.long)
    labels[0, 1:] = IGNORED
    counts = labels != IGNORED
    expected = class_divergence(x[counts], y[counts], NONE, 1.0)
    assert pixel_divergence(x, y, labels, 1.0).item() == expected.item()
    none = pixel_divergence(x, y, torch.full_like(labels, IGNORED), 1.0)
    assert none.item() == 0 and torch.autograd.grad(none, x)[0].abs().sum() == 0


def test_numbers_have_the_mean_squared_difference():
    x, y = pair(5, 2)
    assert squared_difference(x, y, NONE, 1.0).item() == pytest.approx(F.mse_loss(x, y).item())


@pytest.mark.parametrize("loss", [class_divergence, binary_divergence, squared_difference])
def test_no_answers_have_no_loss_with_a_gradient(loss):
    x = torch.empty(0, 3, requires_grad=True)
    value = loss(x, torch.empty(0, 3), NONE, 1.0)
    value.backward()
    assert value.item() == 0 and x.grad.shape == (0, 3)


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float16,) * 2])
def test_half_precision_is_compared_in_float32(dtypes):
    x, y = pair(7, 5)
    x, y = x.detach().to(dtypes[0]), y.to(dtypes[1])
    loss = class_divergence(x, y, NONE, 1.0)
    exact = class_divergence(x.double(), y.double(), NONE, 1.0)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=1e-5)


def test_classes_that_a_model_masks_have_no_part():
    x = torch.tensor([[0.0, 1.0, -math.inf]], requires_grad=True)
    y = torch.tensor([[1.0, 0.0, -math.inf]])
    loss = class_divergence(x, y, NONE, 1.0)
    assert loss.item() == pytest.approx(class_divergence(x[:, :2], y[:, :2], NONE, 1.0).item())
    assert torch.autograd.grad(loss, x)[0].isfinite().all()
