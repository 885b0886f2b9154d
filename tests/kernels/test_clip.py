"""What saturates is marked in the pass that rounds, and stops gradients."""

import pytest
import torch

from chop.errors import ConfigError
from chop.formats import MXFP, Integer, MXInt, ScaleInteger
from chop.kernels import KERNELS, fake_quantize_marking
from tests.kernels.examples import (
    DTYPES,
    EDGES,
    NAN,
    NOT_TAKEN,
    TAKEN,
    any_bits,
    inputs,
    params,
    same,
)
from tests.subcases import subcases

pytestmark = pytest.mark.usefixtures("loops")


def marks(fmt, x, run):
    out, mask = torch.full_like(x, 77.0), torch.zeros_like(x, dtype=torch.bool)
    return run(x, fmt, out, mask), out, mask


@pytest.mark.long
@subcases("fmt", params(TAKEN), kept=24)
def test_the_mask_is_what_saturates(fmt):
    for dtype in DTYPES:
        for x in inputs(dtype):
            taken, out, mask = marks(fmt, x, KERNELS["cpu"].run)
            assert taken
            assert same(out, fmt.round(x)), (dtype, x.shape)
            assert torch.equal(mask, fmt.saturates(x)), (dtype, x.shape)


@subcases("fmt", params(TAKEN[:40:3] + TAKEN[40:]))
def test_the_edge_of_the_range_is_found(fmt):
    top = fmt.round(torch.tensor([[1e38, 1.0], [3.0, 0.5]])).abs().amax()
    for edge in (top, fmt.round(torch.full((8,), 1e38)).amax(), torch.tensor(1.0)):
        near = torch.stack([edge * factor for factor in (0.99, 1.0, 1.001, 1.01, 1.1, 1.5, 2.0)])
        steps = [near, near.nextafter(near.new_tensor(torch.inf)), near.nextafter(near * 0)]
        x = torch.cat([torch.cat(steps), -torch.cat(steps), edge.expand(6)]).view(6, 8)
        for order in (x, x.mT.contiguous().mT, x[:, ::2], x.flatten()):
            y, mask = fake_quantize_marking(order, fmt)
            assert torch.equal(mask, fmt.saturates(order))
            assert same(y, fmt.round(order))
            assert mask.stride() == y.stride() == torch.empty_like(order).stride()


@pytest.mark.parametrize("fmt", params([*NOT_TAKEN[1:], Integer(8, 4)]))
def test_without_a_kernel_it_is_the_reference(fmt, monkeypatch):
    x = torch.cat([EDGES, any_bits(60)])
    monkeypatch.delitem(KERNELS, "cpu")
    torch.manual_seed(0)
    y, mask = fake_quantize_marking(x, fmt)
    torch.manual_seed(0)
    assert same(y, fmt.round(x))
    assert torch.equal(mask, fmt.saturates(x))


@pytest.mark.parametrize("fmt", params([Integer(4, 1), MXInt(4), MXFP(4, 2), ScaleInteger(4)]))
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.sampled(3)
def test_gradients_stop_where_values_saturate(fmt, dtype):
    x = (torch.randn(9, 40) * 5).to(dtype)
    x[0, 0], x[1, 1] = torch.inf, NAN
    x.requires_grad_()
    grad = torch.randn(9, 40).to(dtype)
    grad[2, 2] = torch.inf
    fmt(x, "clip").backward(grad)
    clipped = grad.masked_fill(fmt.saturates(x.detach()), 0)
    assert torch.equal(x.grad, clipped)
    assert x.grad.dtype == dtype
    x.grad = None
    fmt(x.mT, "clip").mT.backward(grad)
    fmt(x[:0], "clip").sum().backward()
    assert torch.equal(x.grad, grad.masked_fill(fmt.saturates(x.detach().mT).mT, 0))
    torch.library.opcheck(torch.ops.chop.clip_gradient.default, (grad, fmt.saturates(grad)))


def test_gradients_of_gradients():
    x = (torch.randn(6, 32) * 9).requires_grad_()
    weight = torch.randn(6, 32, requires_grad=True)
    (first,) = torch.autograd.grad((Integer(4, 1)(x, "clip") * weight).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), weight)
    kept = ~Integer(4, 1).saturates(x.detach())
    assert torch.equal(first.detach(), weight.detach() * kept)
    assert torch.equal(second, 2 * weight.detach() * kept)
    assert not kept.all()


def test_a_gradient_that_nobody_asks_for_stays_none():
    class Forgets(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return y.clone()

        @staticmethod
        def backward(ctx, grad):
            return None, grad

    x, y = (torch.randn(5, requires_grad=True) for _ in range(2))
    Forgets.apply(Integer(4, 2)(x, "clip"), y).sum().backward()
    assert x.grad is None and torch.equal(y.grad, torch.ones(5))


def test_the_values_are_not_kept_for_the_backward_pass():
    x = torch.randn(6, 32, requires_grad=True)
    y = MXInt(4)(x, "clip")
    (saved,) = y.grad_fn.saved_tensors
    assert (saved.dtype, saved.shape) == (torch.bool, x.shape)
    assert not MXInt(4)(x).grad_fn.saved_tensors
    with torch.no_grad():
        assert MXInt(4)(x, "clip").grad_fn is None


def test_the_operator_marks_only_where_a_gradient_is_asked_for(monkeypatch):
    asked = []
    operator = torch.ops.chop.fake_quantize_marking
    monkeypatch.setattr(
        torch.ops.chop, "fake_quantize_marking", lambda *a: asked.append(1) or operator(*a)
    )
    fmt, x = Integer(4, 1), torch.randn(8)
    expected = fmt.round(x)
    assert same(fmt(x, "clip"), expected)
    assert not asked
    assert same(fmt(x.requires_grad_(), "clip").detach(), expected)
    assert asked
    with pytest.raises(ConfigError, match=r"gradient 'clop': did you mean 'clip'"):
        fmt(x, "clop")


@pytest.mark.long
def test_compiled_and_exported_it_is_one_node():
    fmt = Integer(4, 1)

    class Clipped(torch.nn.Module):
        def forward(self, x):
            return fmt(x, "clip") * 2

    x = torch.linspace(-8, 8, 32).requires_grad_()
    y = torch.compile(Clipped(), fullgraph=True, backend="aot_eager")(x)
    assert same(y.detach(), fmt.round(x.detach()) * 2)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, 2.0 - 2.0 * fmt.saturates(x.detach()))
    targets = [str(n.target) for n in torch.export.export(Clipped(), (x,)).graph.nodes]
    assert sum("chop.fake_quantize" in target for target in targets) == 1
