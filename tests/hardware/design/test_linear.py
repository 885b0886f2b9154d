"""Circuits of linear layers, against the layer."""

import pytest
import torch

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.hardware.design.components import COMPONENTS
from chop.hardware.design.emit import emit
from chop.hardware.design.plan import Site
from chop.hardware.design.stream import Stream
from chop.nn.integer import Edge, IntegerLinear
from chop.nn.integer.weighted import Weighted
from tests.hardware.bench import PROFILES, Driven, check, drawn, needs_tools

pytestmark = needs_tools
EDGE = Edge.of(0.5, -128, 127)


def layer(outputs, inputs, edge=EDGE, weights=(-128, 127), biases=(-999, 999), shift=0, seed=0):
    """A linear layer whose output edge is as narrow as its weights allow."""
    weight = drawn(Edge.of(1.0, *weights), outputs, inputs, samples=1, seed=seed).codes[0]
    bias = drawn(Edge.of(1.0, *biases), outputs, samples=1, seed=seed + 1).codes[0]
    ends = torch.stack((weight * edge.low, weight * edge.high))
    low = (ends.amin(0).sum(1) << shift) + bias
    high = (ends.amax(0).sum(1) << shift) + bias
    out = Edge.of(1.0, int(low.min()), int(high.max()))
    bound = int(ends.abs().amax(0).sum(1).max())
    return IntegerLinear(Weighted(weight, bias, shift, bound, out))


@pytest.mark.parametrize(
    ("inputs", "outputs", "rows", "fold", "lanes"),
    [
        (12, 10, (), 120, (1, 1)),
        (12, 10, (), 20, None),
        (12, 10, (17,), 17 * 30, None),
        (8, 6, (2, 3), 12, None),
        (1, 1, (5,), 5, (1, 1)),
        (7, 1, (3,), 21, (1, 1)),
        (1, 5, (3,), 15, (1, 1)),
        (5, 4, (3,), 3 * 20, (1, 1)),
        (48, 10, (), 40, None),
    ],
)
@pytest.mark.sampled(1)
def test_linear(inputs, outputs, rows, fold, lanes):
    plan = check(layer(outputs, inputs), drawn(EDGE, *rows, inputs), fold=fold)
    found = plan.parameters["IN_LANES"], plan.parameters["OUT_LANES"]
    assert plan.cycles <= fold and lanes in (None, found)


@pytest.mark.parametrize(
    ("edge", "weights", "biases", "shift"),
    [
        (EDGE, (-1, 1), (0, 0), 0),
        (EDGE, (0, 0), (-3, 70000), 0),
        (EDGE, (-8, 7), (-5, 5), 5),
        (Edge.of(1.0, 0, 1), (-1, 0), (-1, 0), 9),
        (Edge.of(1.0, -(2**15), 2**15 - 1), (-(2**15), 2**15 - 1), (-(2**40), 2**40), 12),
        (Edge.of(1.0, -3, -2), (5, 9), (100, 120), 0),
    ],
)
@pytest.mark.long
def test_widths(edge, weights, biases, shift):
    operator = layer(6, 8, edge, weights, biases, shift)
    plan = check(operator, drawn(edge, 3, 8), fold=36)
    assert plan.parameters["OUT_W"] == operator.out.bits


def signs(*shape, seed):
    return drawn(Edge.of(1.0, 0, 1), *shape, seed=seed).codes * 2 - 1


def sign_layer(outputs, inputs, shift):
    """A layer of -1 and 1, and what it reads."""
    edge = Edge.of(0.5, -1, 1)
    operator = layer(outputs, inputs, edge, (-1, 1), shift=shift)
    operator.weight.copy_(signs(outputs, inputs, seed=1)[0])
    operator.has_signs = True
    bound = (inputs << shift) + 999
    operator.out_low, operator.out_high = -bound, bound
    stream = Stream.in_order((3, inputs), edge, 1)
    return operator, Driven(stream, signs(3, inputs, seed=2))


@pytest.mark.parametrize(
    ("inputs", "outputs", "edge", "shift", "fold", "profiles"),
    [
        (12, 4, EDGE, 0, 36, PROFILES),
        (7, 5, Edge.of(1.0, -1, 1), 2, 21, ("none", "bursts")),
        (1, 2, Edge.of(1.0, 0, 9), 0, 6, ("none", "uniform")),
        (20, 3, Edge.of(1.0, -(2**20), 2**20), 1, 9, ("uniform", "bursts")),
    ],
)
@pytest.mark.long
def test_ternary_weights_have_no_multipliers(inputs, outputs, edge, shift, fold, profiles):
    operator = layer(outputs, inputs, edge, (-1, 1), shift=shift)
    plan = check(operator, drawn(edge, 3, inputs), fold=fold, profiles=profiles)
    assert plan.module == "chop_ternary_linear" and not plan.resources.multipliers
    width = plan.memories["WEIGHT_FILE"].bits / (inputs * outputs)
    assert width == 2 and plan.parameters["BINARY"] == 0


@pytest.mark.parametrize(
    ("inputs", "outputs", "shift", "fold", "profiles"),
    [
        (12, 4, 0, 36, PROFILES),
        (7, 5, 2, 21, ("none", "bursts")),
        (1, 2, 0, 6, ("none", "uniform")),
        (32, 3, 1, 9, ("uniform", "bursts")),
    ],
)
@pytest.mark.long
def test_signs_are_compared_and_counted(inputs, outputs, shift, fold, profiles):
    operator, entered = sign_layer(outputs, inputs, shift)
    plan = check(operator, entered, fold=fold, profiles=profiles)
    assert plan.memories["WEIGHT_FILE"].bits == inputs * outputs
    assert plan.parameters["BINARY"] == 1 and plan.parameters["SHIFT"] == shift + 1
    operator.weight[0, 0] = 0
    assert check(operator, entered, fold=fold, profiles=("none",)).parameters["BINARY"] == 0


@pytest.mark.parametrize("name", ["binary", "ternary"])
def test_formats_of_one_and_two_bits_are_lowered_to_it(name):
    batch = {"input": torch.randn(4, 16)}
    mg = MaseGraph(torch.nn.Sequential(torch.nn.Linear(16, 6, bias=False)), dummy_in=batch)
    data_in = (
        {"name": "integer", "width": 8, "frac_width": 4} if name == "ternary" else {"name": name}
    )
    sides = {"data_in": data_in, "weight": {"name": name}}
    rules = {"by": "type", "linear": {"config": sides}}
    quantized, _ = passes.quantize_transform_pass(mg, rules)
    integer, _ = passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})
    (instance,) = emit(integer, fold=16).netlist.instances
    assert instance.module == "chop_ternary_linear"
    assert instance.plan.parameters["BINARY"] == (name == "binary")


@pytest.mark.parametrize("fold", [17 * 60, 17 * 10])
@pytest.mark.long
def test_features_and_rows_in_another_order(fold):
    positions = torch.arange(204).view(17, 3, 4).flip(0).transpose(1, 2).reshape(17, 12)
    check(layer(5, 12), drawn(EDGE, 17, 12, positions=positions), fold=fold)


def test_interrupted_rows_are_refused():
    stream = Stream(torch.arange(12).view(4, 3).T, EDGE, 1)
    with pytest.raises(ConfigError, match="rows of 4 elements are interleaved"):
        COMPONENTS["IntegerLinear"].plan(Site(layer(2, 4), [stream], 24))
