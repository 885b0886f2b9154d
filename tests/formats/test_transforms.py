"""Derivatives of fake-quantizers in forward mode and under `torch.func`."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

from chop.errors import DerivativeError
from chop.formats import Integer, MXInt, QuantSpec, ScaleInteger, Ternary, formats
from chop.nn.fused.linear_activation import LinearActivation
from chop.nn.packed.operators import PackedLinear
from chop.nn.quantized import QuantLinear
from tests.formats.examples import list_examples
from tests.subcases import subcases

EXAMPLES = [fmt for kind in formats() for fmt in list_examples(kind)[:3] if fmt.is_deterministic]


@pytest.fixture(params=["identity", "clip"])
def gradient(request):
    return request.param


@pytest.mark.sampled(1)
@subcases("fmt", EXAMPLES, ids=lambda fmt: fmt.label)
def test_both_modes_give_the_same_derivative(fmt, gradient):
    x, tangent = 3 * torch.randn(4, 32), torch.randn(4, 32)
    leaf = x.clone().requires_grad_()
    (fmt(leaf, gradient) * tangent).sum().backward()
    with forward_ad.dual_level():
        y, found = forward_ad.unpack_dual(fmt(forward_ad.make_dual(x, tangent), gradient))
    assert torch.equal(y, fmt(x, gradient))
    assert torch.equal(found, leaf.grad)
    y, found = jvp(lambda x: fmt(x, gradient), (x,), (tangent,))
    assert torch.equal(y, fmt(x, gradient)) and torch.equal(found, leaf.grad)


@pytest.mark.long
@subcases("fmt", EXAMPLES, ids=lambda fmt: fmt.label)
@subcases("axis", [0, 2])
def test_vmap_rounds_each_sample_by_itself(fmt, axis):
    x = torch.randn(4, 6, 5)
    expected = torch.stack([fmt(sample) for sample in x.unbind(axis)])
    assert torch.equal(vmap(fmt, in_dims=axis)(x), expected)


def test_jacobians_and_second_derivatives(gradient):
    fmt, x = Integer(4, 1), torch.tensor([0.3, -1.2, 9.0, -9.0])
    kept = torch.tensor([1.0, 1.0, 0.0, 0.0]) if gradient == "clip" else torch.ones(4)
    for jacobian in (jacrev, jacfwd):
        assert torch.equal(jacobian(lambda x: fmt(x, gradient))(x), torch.diag(kept))
    second = hessian(lambda x: fmt(x, gradient).square().sum())(x)
    assert torch.equal(second, torch.diag(2 * kept))


@subcases("fmt", [Integer(8, 4), MXInt(), ScaleInteger(8), Ternary()], ids=str)
def test_gradients_of_each_sample_are_those_of_a_loop(fmt, gradient):
    layer = QuantLinear.from_float(nn.Linear(32, 3), QuantSpec(fmt, fmt, gradient=gradient))
    parameters, x = dict(layer.named_parameters()), torch.randn(5, 32)

    def loss(parameters, sample):
        return functional_call(layer, parameters, (sample[None],)).square().sum()

    found = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for name, of_samples in found.items():
        expected = torch.stack([grad(loss)(parameters, sample)[name] for sample in x])
        torch.testing.assert_close(of_samples, expected)
        assert of_samples.abs().sum() > 0


def test_packed_layers_have_the_tangent_of_their_decoded_weight():
    layer = QuantLinear.from_float(nn.Linear(32, 8), QuantSpec(weight=MXInt())).eval()
    packed = PackedLinear.of(layer, {})
    x, tangent = torch.randn(4, 32), torch.randn(4, 32)
    _, found = jvp(packed, (x,), (tangent,))
    expected = tangent @ layer.spec.weight.round(layer.weight).T
    torch.testing.assert_close(found, expected)


def test_fused_activations_have_a_tangent():
    fused = LinearActivation.from_linear(nn.Linear(1024, 1024).requires_grad_(False), "relu")
    x, tangent = torch.randn(4, 1024), torch.randn(4, 1024)
    _, found = jvp(fused, (x,), (tangent,))
    _, expected = jvp(fused.reference, (x,), (tangent,))
    torch.testing.assert_close(found, expected)
    assert found.abs().sum() > 0


def test_learned_scales_refuse_what_would_lose_a_derivative():
    spec = QuantSpec(weight=ScaleInteger(4), gradient="lsq")
    layer = QuantLinear.from_float(nn.Linear(8, 2), spec)
    x = torch.randn(3, 8)
    layer(x)
    with pytest.raises(DerivativeError, match=r"only backward\(\).*use gradient 'identity'"):
        jvp(layer, (x,), (torch.ones_like(x),))


def test_torch_compile_leaves_transforms_to_pytorch():
    fmt, x = Integer(8, 4), torch.randn(3, 4)

    def tangent(x):
        return jvp(fmt, (x,), (torch.ones_like(x),))[1]

    torch._dynamo.reset()
    compiled = torch.compile(tangent, backend="eager")(x)
    assert torch.equal(compiled, torch.ones_like(x))
    explained = torch._dynamo.explain(lambda x: fmt(x, "clip") * 2)(x)
    assert explained.graph_break_count == 0
