"""Quantized operators write where the float ones do: into views, buffers and other names."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.formats import Integer, QuantSpec, parse_format_string
from chop.nn.quantized import QuantEmbedding, QuantReLU, QuantSELU, QuantSiLU

WIDE = {"by": "type", "default": {"config": {"name": "integer", "width": 32, "frac_width": 20}}}


class Writes(nn.Module):
    """A Linear whose result a function writes into."""

    def __init__(self, write):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.write = write

    def forward(self, x):
        return self.write(self.fc(x))


class Keeps(nn.Module):
    """Adds what it computes to a buffer."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        y = self.fc(x)
        with torch.no_grad():
            self.total += y.sum(0)
        return y + self.total


class Activates(nn.Module):
    """Applies an in-place module to a view and returns what it is a view of."""

    def __init__(self, act, view):
        super().__init__()
        self.fc, self.act, self.view = nn.Linear(4, 4), act, view

    def forward(self, x):
        y = self.fc(x)
        self.act(self.view(y))
        return y


def slices(y):
    y[:, :3].relu_()
    return y


def by_flag(y):
    F.silu(y[:, 1:], inplace=True)
    return y


def transposed(y):
    y.T.mul_(y.T * 0.5)
    return y


def viewed_before(y):
    view = y[:, :2]
    y.relu_()
    return view


def flattened(y):
    flat = y.view(-1)
    torch.sigmoid_(flat[::2])
    return y


def accumulates(y):
    z = y
    z += y.relu()
    z[0] *= 2
    return y


def into_out(y):
    y = y.detach()
    torch.add(y[:, 1:], y[:, :3].clone(), out=y[:, 1:])
    return y


def by_keyword(y):
    torch.relu_(input=y[1:])
    return y


MODELS = {
    **{f.__name__: lambda f=f: Writes(f) for f in (slices, by_flag, transposed, viewed_before)},
    **{f.__name__: lambda f=f: Writes(f) for f in (flattened, accumulates, into_out, by_keyword)},
    "buffer": Keeps,
    "relu": lambda: Activates(nn.ReLU(inplace=True), lambda y: y.T),
    "silu": lambda: Activates(nn.SiLU(inplace=True), lambda y: y[:, 1:]),
}


def captured(model, x):
    return MaseGraph(model, dummy_in={"x": x.clone()})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(3)
def test_a_wide_format_changes_nothing(name):
    torch.manual_seed(0)
    model, x = MODELS[name]().eval(), torch.randn(3, 4)
    expected = copy.deepcopy(model)
    quantized, info = passes.quantize_transform_pass(captured(model, x), WIDE)
    assert info["quantized"] > 1
    for _ in range(2):
        x = torch.randn(3, 4)
        wanted, found = expected(x), quantized.model(x)
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
        assert wanted.requires_grad == found.requires_grad
        if wanted.requires_grad:
            wanted.sum().backward()
            found.sum().backward()
            found_grad = quantized.model.get_parameter("fc.weight").grad
            torch.testing.assert_close(found_grad, expected.fc.weight.grad, atol=1e-3, rtol=1e-3)
    state = dict(expected.named_buffers())
    torch.testing.assert_close(dict(quantized.model.named_buffers()), state, atol=1e-4, rtol=0)


@pytest.mark.parametrize("gradient", ["identity", "clip"])
def test_what_is_written_is_rounded_and_trains(gradient):
    spec = QuantSpec(
        data_in=parse_format_string("scale_integer:width=8"),
        data_out=Integer(6, 2),
        gradient=gradient,
    )
    mg = captured(Writes(viewed_before), torch.randn(3, 4))
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "relu": {"config": spec}})
    y = mg.model(torch.randn(3, 4))
    assert torch.equal(y, Integer(6, 2).round(y))
    y.sum().backward()
    assert mg.model.get_parameter("fc.weight").grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("twin", "module"), [(QuantReLU, nn.ReLU), (QuantSiLU, nn.SiLU), (QuantSELU, nn.SELU)]
)
def test_in_place_modules_write_into_their_input(twin, module):
    grid = Integer(6, 2)
    x = torch.randn(3, 4)
    act = twin(inplace=True, config={"data_in": grid, "data_out": grid})
    expected, view = grid.round(module()(grid.round(x[:, 1:]))), x[:, 1:]
    assert act(view) is view
    assert torch.equal(x[:, 1:], expected)
    learned = torch.randn(3, 4, requires_grad=True)
    act(learned * 1).sum().backward()
    assert learned.grad.abs().sum() > 0


def test_rows_of_a_table_are_shortened_in_the_table():
    table, ids = nn.Embedding(9, 4, max_norm=0.5), torch.tensor([1, 3, 3])
    twin = QuantEmbedding.from_float(copy.deepcopy(table), QuantSpec())
    assert torch.equal(twin(ids), table(ids)) and torch.equal(twin.weight, table.weight)
    assert twin.weight.norm(dim=1)[[1, 3]].max() < 0.51 < twin.weight.norm(dim=1).max()
