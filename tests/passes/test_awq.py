import itertools

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.formats import GroupInteger, Integer, MXInt, QuantSpec

from .conftest import with_metadata

FORMAT = {"name": "mxint", "width": 4, "block_size": 16}


class Norm(nn.Module):
    """A root mean square norm written out, as decoders have it."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class Gated(nn.Module):
    """A gated MLP on a residual stream: a gain, and a product of two values, lie before layers."""

    def __init__(self):
        super().__init__()
        self.norm = Norm(32)
        self.gate = nn.Linear(32, 64, bias=False)
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        return self.head(x)


def data(rows, seed):
    return torch.randn(rows, 5, 32, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def graph():
    torch.manual_seed(0)
    model = Gated().eval()
    outliers = torch.ones(32)
    outliers[3], outliers[17] = 30.0, 12.0  # salient channels
    model.norm.weight.data *= outliers
    return with_metadata(MaseGraph(model, dummy_in={"x": data(3, 9)}))


def scaled(mg, **settings):
    batches = [{"x": x} for x in data(64, 1).split(20)]
    return passes.awq_transform_pass(mg, {"batches": batches, "weight": FORMAT, **settings})


def test_the_float_model_computes_what_it_did_through_a_gain_and_a_product(graph):
    mg, info = scaled(graph)
    x = data(10, 2)
    torch.testing.assert_close(mg.model(x), graph.model(x), atol=1e-4, rtol=1e-4)
    assert {path: row["readers"] for path, row in info["scaled"].items()} == {
        "norm.weight": ["gate", "up"],
        "up": ["down"],
    }
    assert list(info["skipped"]) == ["head"]
    gain = info["scaled"]["norm.weight"]
    assert gain["exponent"] > 0 and gain["after"] < gain["before"] * 0.6
    assert not torch.equal(mg.modules["norm"].weight, graph.modules["norm"].weight)


FORMATS = [MXInt(4, block_size=16), GroupInteger(3), GroupInteger(2), Integer(4, "auto")]


@pytest.mark.parametrize("weight", FORMATS, ids=lambda x: x.label)
@pytest.mark.sampled(2)
def test_the_error_of_quantizing_weights_falls(graph, weight):
    spec, x = {"config": QuantSpec(weight=weight)}, data(100, 2)

    def error(mg):
        rounded, _ = passes.quantize_transform_pass(mg, {"linear": spec})
        return (rounded.model(x) - graph.model(x)).square().mean().item()

    assert error(scaled(graph, weight=weight)[0]) < 0.85 * error(graph)


def test_the_exponent_is_the_best_of_the_grid_by_the_layers_own_outputs(graph):
    settings = {"row_weights": "uniform", "grid": 4}
    _, info = scaled(graph, **settings)
    x, seen = data(64, 1), []
    hook = graph.modules["gate"].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    graph.model(x)
    hook.remove()
    magnitude = seen[0].flatten(0, 1).abs().mean(0)
    layers = [graph.modules[path].weight.detach() for path in ("gate", "up")]
    errors = {}
    for i, j in itertools.product(range(5), range(4)):
        s = magnitude ** (i / 4)
        s = 2 ** (j / 4) * s / (s.min() * s.max()).sqrt()
        outputs = [seen[0] @ w.T for w in layers]
        rounded = [(seen[0] / s) @ MXInt(4, block_size=16).round(w * s).T for w in layers]
        error = sum((a - b).square().sum() for a, b in zip(outputs, rounded, strict=True))
        errors[i / 4, 2 ** (j / 4)] = (error / sum(y.square().sum() for y in outputs)).item()
    told = info["scaled"]["norm.weight"]
    assert (told["exponent"], told["factor"]) == min(errors, key=errors.get)
    assert told["factor"] > 1
    assert told["before"] == pytest.approx(errors[0, 1], rel=1e-3)
    assert told["after"] == pytest.approx(min(errors.values()), rel=1e-3)
    assert info["scaled"]["up"]["factor"] == 1  # it would change how the weights of `up` round
    _, of_floats = scaled(graph, weight=GroupInteger(4), **settings)
    assert of_floats["scaled"]["norm.weight"]["factor"] == 1


class Refused(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))
        self.register_buffer("fixed", torch.ones(4))
        self.scalar = nn.Parameter(torch.ones(1))
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.c, self.d = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.a(self.fixed * x.sin())
        x = self.b(self.scalar * x.tanh())
        y = self.gain * x.tanh()
        return self.c(y) + y + self.d(x.sin() * x.sin())


def test_what_cannot_be_divided_is_named():
    mg = with_metadata(MaseGraph(Refused().eval(), dummy_in={"x": torch.randn(3, 4)}))
    batches = [{"x": torch.randn(9, 4)}]
    same, info = passes.awq_transform_pass(mg, {"batches": batches, "weight": "mxint"})
    assert info["scaled"] == {}
    assert info["skipped"] == {
        "a": "'fixed' before it has no weight per channel",
        "b": "'scalar' before it has no weight per channel",
        "c": "'add' also reads its input and cannot be rescaled",
        "d": "its input comes from 'sin_1', which is not a norm or Linear",
    }
    assert torch.equal(same.model(batches[0]["x"]), mg.model(batches[0]["x"]))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"weight": "mxintt"}, "mxint"),
        ({"weight": None, "row_weights": "attention"}, "row_weights"),
    ],
)
def test_wrong_settings_are_named(graph, settings, message):
    with pytest.raises(ConfigError, match=message):
        scaled(graph, **settings)
