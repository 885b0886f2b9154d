"""A new operator is its class, its row and its example: all of chop then knows it."""

import dataclasses
import io
import math
import pickle

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.formats import Integer, QuantSpec
from chop.ir.ops import OPS, Kind, Operator, RuleResult, Weight, get_class_row, register, unregister
from chop.ir.ops.dimensions import unchanged
from chop.nn.packed import PACKED, PackedOperator, pack
from chop.nn.quantized import QuantizedOperator
from chop.problems.mixed_precision.costs import Costs
from chop.problems.mixed_precision.layers import Layers
from tests.passes.conftest import with_metadata

FORMAT = Integer(8, 5)


class BiasedScale(nn.Module):
    """`input * weight + bias` for each feature; input (..., features)."""

    def __init__(self, features):
        super().__init__()
        self.features = features
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, input):
        return input * self.weight + self.bias


class QuantBiasedScale(QuantizedOperator, BiasedScale):
    """`BiasedScale`, quantized; input (..., features)."""

    operands = ("data_in", "weight", "bias")

    def forward(self, input):
        Q = self.quantize
        y = Q("data_in", input) * Q("weight", self.weight) + Q("bias", self.bias)
        return Q("data_out", y)


def scaled(call, source, place):
    """Features keep their place and have a weight and a bias each."""
    if place.dim < len(call.shapes[source]) - 1:
        return unchanged(call, source, place)
    return RuleResult(place, {"weight": 0, "bias": 0}, ("features",))


ROW = Operator(
    "biased_scale",
    "module",
    (BiasedScale,),
    quantized=QuantBiasedScale,
    kind=Kind.NORM,
    features=-1,
    follow=scaled,
    flops=lambda given, result: 2 * math.prod(result),
)


@pytest.fixture(autouse=True)
def registered():
    register(ROW)
    yield
    unregister(ROW.name)
    PACKED.pop(QuantBiasedScale, None)


def example():
    torch.manual_seed(0)
    module = BiasedScale(8)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module, torch.randn(5, 8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.scale = example()[0]
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.scale(self.first(x)))


@pytest.fixture
def mg():
    torch.manual_seed(1)
    return with_metadata(MaseGraph(Net().eval(), dummy_in={"x": torch.randn(5, 6)}))


@pytest.fixture
def quantized(mg):
    rules = {"by": "type", "biased_scale": {"config": QuantSpec.uniform(FORMAT)}}
    return passes.quantize_transform_pass(mg, rules)[0]


def test_captured(mg):
    called = [node.target for node in mg.nodes if node.op == "call_module"]
    assert called == ["first", "scale", "last"]
    common = mg.node("scale").meta["mase"].common
    assert (common.mase_op, common.mase_type) == ("biased_scale", "module")
    assert common.args["weight"].shape == (8,)
    assert get_class_row(BiasedScale) is ROW is OPS["biased_scale"]
    assert ROW.is_quantizable and not ROW.is_product


def test_quantized(quantized):
    layer, x = quantized.modules["scale"], example()[1]
    assert type(layer) is QuantBiasedScale
    Q = FORMAT.round
    assert torch.equal(layer(x), Q(x) * Q(layer.weight) + Q(layer.bias))
    assert list(layer.state_dict()) == ["weight", "bias"]
    y = layer(x.requires_grad_())
    y.sum().backward()
    assert torch.equal(layer.weight.grad, Q(x).detach().sum(0))


def test_packed(quantized):
    x = torch.randn(4, 6)
    packed, info = passes.pack_transform_pass(quantized, {"silent": True})
    layer = packed.modules["scale"]
    assert type(layer).__name__ == "PackedBiasedScale" and isinstance(layer, QuantBiasedScale)
    assert layer.packed_bits("weight") == 8.0 == info["bits_per_weight"]
    assert torch.equal(packed.model(x), quantized.model(x))
    back, _ = passes.pack_transform_pass(packed, {"unpack": True, "silent": True})
    assert type(back.modules["scale"]) is QuantBiasedScale
    assert torch.equal(back.model(x), quantized.model(x))


def test_packed_layers_are_pickled(quantized):
    layer, x = pack(quantized.modules["scale"]), example()[1]
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), layer(x))


def test_pruned_through(mg):
    with torch.no_grad():
        mg.modules["first"].weight *= torch.arange(8)[:, None]
    kept = torch.arange(4, 8)
    first, scale, last = (mg.modules[name] for name in ("first", "scale", "last"))
    small, info = passes.prune_transform_pass(
        mg, {"weight": {"sparsity": 0.5, "granularity": "channel", "method": "l1-norm"}}
    )
    assert info["layers"]["first"] == 0.5 and "first" not in info["skipped"]
    assert small.modules["scale"].features == 4
    assert small.modules["last"].weight.shape == (3, 4)
    x = torch.randn(5, 6)
    hidden = nn.functional.linear(x, first.weight[kept], first.bias[kept])
    hidden = hidden * scale.weight[kept] + scale.bias[kept]
    expected = nn.functional.linear(hidden, last.weight[:, kept], last.bias)
    torch.testing.assert_close(small.model(x), expected)


def test_without_a_rule_it_stops_pruning(mg):
    unregister(ROW.name)
    register(dataclasses.replace(ROW, follow=None))
    _, info = passes.prune_transform_pass(
        mg, {"weight": {"sparsity": 0.5, "granularity": "channel", "method": "l1-norm"}}
    )
    assert info["skipped"]["first"] == "they reach 'scale'"


def test_counted(mg):
    layers = Layers(mg, [{"x": torch.randn(5, 6)}], ["linear", "biased_scale"])
    assert {name: layer.macs for name, layer in layers.by_name.items()} == {
        "first": 6 * 8,
        "scale": 8,
        "last": 8 * 3,
    }
    costs = Costs(layers)({"scale": {"data_in": FORMAT, "weight": Integer(4, 2)}})
    others = (6 * 8 + 8 * 3) * 32 * 32
    assert costs["bit_operations"] == others + 8 * 8 * 4
    elements = 6 * 8 + 8 + 8 + 8 + 8 * 3 + 3
    assert costs["bits"] == pytest.approx((8 * 4 + (elements - 8) * 32) / elements)


def test_bits_are_reported(quantized):
    _, info = passes.calculate_avg_bits_mg_analysis_pass(quantized, {})
    floats, scales = 6 * 8 + 8 + 8 * 3 + 3, 8 + 8
    assert info["weight_bytes"] == 4 * floats + scales
    assert info["data_avg_bit"] == (6 * 32 + 8 * 8 + 8 * 32) / (6 + 8 + 8)


def test_drawn(quantized, tmp_path):
    picture = quantized.draw(tmp_path / "graph.svg").read_text()
    assert "QuantBiasedScale" in picture
    assert "normalization 1" in picture and "matrix product 2" in picture
    assert FORMAT.label in picture


def test_smoothed_as_a_source(mg):
    x = torch.randn(5, 6)
    smooth, info = passes.smoothquant_transform_pass(mg, {"batches": [{"x": x}]})
    assert info["smoothed"] == {"scale": ["last"]}
    torch.testing.assert_close(smooth.model(x), mg.model(x))


class Transposed(nn.Module):
    """A linear layer whose weight lies as (inputs, outputs); input (..., inputs)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, input):
        return input @ self.weight + self.bias


class QuantTransposed(QuantizedOperator, Transposed):
    """`Transposed`, quantized."""

    operands = ("data_in", "weight", "bias")

    def forward(self, input):
        Q = self.quantize
        y = Q("data_in", input) @ Q("weight", self.weight) + Q("bias", self.bias)
        return Q("data_out", y)


@pytest.fixture
def transposed():
    row = Operator(
        "transposed",
        "module",
        (Transposed,),
        quantized=QuantTransposed,
        kind=Kind.PRODUCT,
        weight=Weight(1, 0, ("outputs", "inputs")),
        features=-1,
    )
    register(row)
    torch.manual_seed(2)
    model = nn.Sequential(Transposed(8, 8), nn.Linear(8, 3))
    yield with_metadata(MaseGraph(model, dummy_in={"input": torch.randn(5, 8)}))
    unregister("transposed")


def test_a_transposed_weight_is_smoothed_along_its_outputs(transposed):
    x = torch.randn(5, 8) * torch.arange(1.0, 9)
    smooth, info = passes.smoothquant_transform_pass(transposed, {"batches": [{"input": x}]})
    assert info["smoothed"] == {"0": ["1"]}
    torch.testing.assert_close(smooth.model(x), transposed.model(x))
    assert not torch.equal(smooth.modules["1"].weight, transposed.modules["1"].weight)


@pytest.mark.parametrize("granularity", ["column", "2:4"])
def test_a_transposed_weight_is_pruned_along_its_inputs(transposed, granularity):
    settings = {"granularity": granularity, "method": "l1-norm"}
    settings |= {"sparsity": 0.5} if granularity == "column" else {}
    pruned, _ = passes.prune_transform_pass(
        transposed, {"weight": settings, "include": ["transposed"]}
    )
    hidden = pruned.modules["0"].effective("weight") == 0
    if granularity == "column":
        assert hidden.all(1).sum() == 4 and hidden.any(1).sum() == 4
    else:
        assert (hidden.view(2, 4, 8).sum(1) == 2).all()


def test_layers_joined_behind_it_lose_the_same_features():
    class Joined(Net):
        def __init__(self):
            super().__init__()
            self.beside = nn.Linear(6, 8)

        def forward(self, x):
            return self.last(self.beside(x) + self.scale(self.first(x)))

    mg = with_metadata(MaseGraph(Joined().eval(), dummy_in={"x": torch.randn(5, 6)}))
    small, info = passes.prune_transform_pass(
        mg, {"weight": {"sparsity": 0.5, "granularity": "channel", "method": "l1-norm"}}
    )
    assert info["layers"] == {"beside": 0.5, "first": 0.5}
    assert info["skipped"] == {"last": "they reach 'output'"}
    assert small.modules["scale"].features == 4 and small.model(torch.randn(2, 6)).shape == (2, 3)


@pytest.mark.parametrize(
    ("row", "taken"),
    [
        (Operator("biased_scale", "module"), "biased_scale"),
        (Operator("another", "module", (BiasedScale,)), "BiasedScale"),
        (Operator("another", "module", (nn.Linear,)), "Linear"),
        (Operator("another", "builtin_func", methods=("add",)), "add"),
    ],
)
def test_what_is_in_the_table_is_not_replaced(row, taken):
    before = dict(OPS)
    with pytest.raises(ConfigError, match=rf"'{row.name}'.*(defined twice|{taken}.* already)"):
        register(row)
    assert before == OPS


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Operator("another", "builtin_func", methods=("erf_",)), "'erf_' as 'erf'"),
        (Operator("another", "module", (nn.RReLU,), quantized=nn.ReLU), "QuantizedOperator.*ReLU"),
    ],
)
def test_rows_that_cannot_work_leave_the_table_as_it_is(row, message):
    before = dict(OPS)
    with pytest.raises(ConfigError, match=message):
        register(row)
    assert before == OPS and get_class_row(nn.RReLU).name == "rrelu"


def test_names_that_are_taken_are_not_overwritten(monkeypatch):
    class QuantThing(QuantizedOperator, BiasedScale):
        operands = ("weight",)

    row = Operator("thing", "module", (nn.RReLU,), quantized=QuantThing)
    monkeypatch.setitem(globals(), "PackedThing", "somebody's")
    with pytest.raises(ConfigError, match=f"QuantThing.*'{__name__}' already has a PackedThing"):
        register(row)
    assert "thing" not in OPS and QuantThing not in PACKED
    monkeypatch.delitem(globals(), "PackedThing")
    QuantThing.__module__ = "nowhere"
    with pytest.raises(ConfigError, match="'nowhere' is not imported"):
        register(row)
    assert "thing" not in OPS


def test_a_row_that_is_gone_leaves_its_names_free():
    derived = PACKED[QuantBiasedScale]
    unregister(ROW.name)
    assert QuantBiasedScale not in PACKED and get_class_row(BiasedScale) is not ROW
    with pytest.raises(ConfigError, match="'biased_scales' is not in the table"):
        unregister("biased_scales")
    register(ROW)
    assert PACKED[QuantBiasedScale] is not derived and globals()["PackedBiasedScale"] is not derived


def test_a_packed_class_of_its_own_takes_the_place_of_the_derived_one(quantized):
    derived = PACKED[QuantBiasedScale]
    assert derived.__module__ == __name__ and "from codes" in derived.__doc__

    class Own(PackedOperator, QuantBiasedScale):
        operator = QuantBiasedScale

    class Heir(Own):
        pass

    assert PACKED[QuantBiasedScale] is Own
    assert type(pack(quantized.modules["scale"])) is Own
