"""Gradients of learned scales in one pass are the reference's, up to the order of sums."""

import pytest
import torch

from chop.errors import DerivativeError
from chop.formats import Binary, ScaleInteger, Ternary
from chop.formats.lsq import gradients, lsq_fake_quantize
from chop.kernels.base import fake_quantize
from chop.kernels.cpu.build import library
from chop.kernels.lsq import gradients_in_one_pass

FORMATS = {
    "tensor": (ScaleInteger(8), 1),
    "four bits": (ScaleInteger(4), 1),
    "unsigned": (ScaleInteger(8, is_signed=False), 1),
    "sixteen bits": (ScaleInteger(16), 1),
    "channel": (ScaleInteger(8, granularity="channel"), None),
    "ternary": (Ternary(scaling_factor=True), 1),
    "signs": (Binary(scaling_factor=True), 1),
}
BY_REFERENCE = {"signs", "ternary"}
SHAPES = [(1,), (5, 3, 7), (33, 64), (3, 20_001), (2, 8192), (40, 1)]


def case(name, shape):
    """Values, many of them beyond the range, on its ends, zero or not finite."""
    number_format, count = FORMATS[name]
    scales = torch.rand(count or shape[0]) * 0.05 + 1e-3
    layout = number_format.layout()
    x = torch.randn(shape)
    flat = x.view(-1)
    ends = layout.element.largest * scales[:1], layout.element.lowest * scales[:1]
    for at, value in enumerate((*ends, torch.zeros(1), -torch.zeros(1))):
        flat[at::11] = value
    grad = torch.randn(shape)
    return layout, grad, x, number_format.round_by(x, scales), scales


needs_library = pytest.mark.skipif(
    library().library is None, reason="no C++ compiler: the reference computes the gradients"
)


@needs_library
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.sampled(8)
def test_they_are_the_reference_s(name, shape):
    layout, grad, x, rounded, scales = case(name, shape)
    found = gradients_in_one_pass(FORMATS[name][0], grad, x, scales)
    if name in BY_REFERENCE:
        assert found is None
        return
    of_x, of_scales = found
    expected_x, expected = gradients(layout, grad, x, rounded, scales)
    if of_x is None:  # a single number may be the zero
        assert torch.equal(grad, expected_x)
    else:
        assert torch.equal(of_x, expected_x)
    terms = gradients(layout, grad.abs(), x, rounded + x.abs(), scales)[1].abs() + 1
    assert of_scales.shape == expected.shape and of_scales.dtype == expected.dtype
    assert ((of_scales - expected).abs() <= 2**-18 * terms / scales.min()).all()


@needs_library
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_given_scales_round_to_the_bits_of_the_reference(name, in_place):
    """Products with inverse scales are uncertain near ties, which only some chunks have."""
    number_format, count = FORMATS[name]
    scales = torch.rand(count or 3) * 0.05 + 1e-3
    x = torch.randn(3, 1500)
    ties = (torch.arange(-9, 9) + 0.5) * scales[0]
    near = torch.cat([ties, ties.nextafter(ties + 1), ties.nextafter(ties - 1)])
    x[0, 600 : 600 + near.numel()] = near
    expected = number_format.round_by(x, scales)
    given = x.clone()
    found = fake_quantize(given, number_format, given if in_place else None, scales)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    assert (found is given) == in_place
    assert in_place or torch.equal(given, x)


def test_second_derivatives_are_refused():
    x = torch.randn(4, 8, requires_grad=True)
    scales = torch.full((1,), 0.02, requires_grad=True)
    y = lsq_fake_quantize(x, scales, ScaleInteger(8), False)
    (of_scales,) = torch.autograd.grad(y.square().sum(), scales, create_graph=True)
    with pytest.raises(DerivativeError, match=r"first derivatives only; use gradient 'identity'"):
        of_scales.backward()


@needs_library
def test_what_is_not_finite_passes_as_in_the_reference():
    layout, grad, x, _, scales = case("channel", (4, 40))
    x[0, 3], x[1, 5], grad[2, 7], grad[3, 9] = float("nan"), float("inf"), float("nan"), -torch.inf
    rounded = ScaleInteger(8, granularity="channel").round_by(x, scales)
    found = gradients_in_one_pass(FORMATS["channel"][0], grad, x, scales)
    expected = gradients(layout, grad, x, rounded, scales)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3, equal_nan=True)


@needs_library
def test_sums_do_not_depend_on_threads_or_strides(threads):
    _, grad, x, _, scales = case("tensor", (64, 5000))
    number_format = FORMATS["tensor"][0]
    threads(1)
    once = gradients_in_one_pass(number_format, grad, x, scales)
    threads(4)
    again = gradients_in_one_pass(number_format, grad, x, scales)
    turned = [t.t().contiguous().t() for t in (grad, x)]
    strided = gradients_in_one_pass(number_format, *turned, scales)
    for other in (again, strided):
        assert torch.equal(once[0], other[0]) and torch.equal(once[1], other[1])


@needs_library
@pytest.mark.parametrize("at", [None, 0, 8191, 8192, 20_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_is_copied_only_if_a_number_lies_beyond_the_range(at, dtype):
    x = torch.randn(20_001).clamp(-4, 4).to(dtype).requires_grad_()
    scales = torch.full((1,), 0.125, requires_grad=True)  # up to 15.875
    if at is not None:
        x.data[at] = 16.0
    received = []
    y = lsq_fake_quantize(x, scales, ScaleInteger(8), False)
    y.register_hook(received.append)
    x.register_hook(received.append)
    grad = torch.randn(20_001).to(dtype)
    (y * grad).sum().backward()
    expected = grad.clone()
    if at is not None:
        expected[at] = 0
    assert torch.equal(x.grad, expected)
    assert (received[0].data_ptr() == received[1].data_ptr()) == (at is None)
    values = x.detach().float()
    rounded = ScaleInteger(8).round_by(values, scales.detach())
    both = ScaleInteger(8).layout(), grad.float(), values, rounded, scales.detach()
    share = (20_001 * 127) ** -0.5
    torch.testing.assert_close(scales.grad, gradients(*both)[1] * share, rtol=1e-3, atol=1e-4)


def test_gradients_of_empty_and_transposed_tensors():
    scales = torch.full((1,), 0.125, requires_grad=True)
    for x in (torch.zeros(0, 8), torch.randn(8, 6).t(), torch.randn(8, 6).t() * 30):
        x, grad = x.clone().requires_grad_(), torch.ones(x.shape)
        scales.grad = None
        lsq_fake_quantize(x, scales, ScaleInteger(8), False).backward(grad)
        expected = grad.masked_fill(x.detach().abs() >= 127 * 0.125, 0)
        assert torch.equal(x.grad, expected)
        assert scales.grad.isfinite().all()


def test_training_takes_the_kernel():
    """Weights train through the operator: its gradients are those of the pass."""
    if library().library is None:
        pytest.skip("no C++ compiler: the reference computes them")
    x = torch.randn(16, 8, requires_grad=True)
    scales = torch.full((1,), 0.02, requires_grad=True)
    lsq_fake_quantize(x, scales, ScaleInteger(8), False).sum().backward()
    rounded = ScaleInteger(8).round_by(x.detach(), scales.detach())
    of_x, of_scales = gradients(
        ScaleInteger(8).layout(), torch.ones(16, 8), x.detach(), rounded, scales.detach()
    )
    assert torch.equal(x.grad, of_x)
    share = 1 / (128 * 127) ** 0.5
    torch.testing.assert_close(scales.grad, of_scales * share, rtol=1e-4, atol=1e-4)
