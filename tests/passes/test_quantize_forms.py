"""However a model spells a call, quantizing it means the same."""

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.formats import Integer, QuantSpec
from chop.ir.parameters import stored_parameters
from chop.ir.unreached import UnreachedWarning
from tests.networks import Made, Tied, twice
from tests.passes.conftest import with_metadata

GRID = Integer(5, 2)
ALL = {"config": QuantSpec.uniform(GRID)}


class Calls(nn.Module):
    """Applies `call(x, weight, bias)`."""

    def __init__(self, call, weight=(4,), bias=(4,)):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(weight))
        self.bias = nn.Parameter(torch.randn(bias))
        self.call = call

    def forward(self, x):
        return self.call(x, self.weight, self.bias)


def quantized(model, kind, x, config=None):
    mg = with_metadata(MaseGraph(model.eval(), dummy_in={"x": x}))
    return passes.quantize_transform_pass(mg, {"by": "type", kind: config or ALL})[0]


FORMS = {
    "linear": (
        lambda x, w, b: F.linear(x, w, b),
        lambda x, w, b: F.linear(x, weight=w, bias=b),
        lambda x, w, b: F.linear(bias=b, weight=w, input=x),
    ),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (4,), w, b),
        lambda x, w, b: F.layer_norm(x, normalized_shape=(4,), bias=b, weight=w),
    ),
    "rms_norm": (
        lambda x, w, b: F.rms_norm(x, (4,), w),
        lambda x, w, b: F.rms_norm(x, (4,), weight=w),
    ),
    "matmul": (
        lambda x, w, b: x @ w,
        lambda x, w, b: torch.matmul(x, w),
        lambda x, w, b: x.matmul(other=w),
        lambda x, w, b: torch.matmul(other=w, input=x),
    ),
    "add": (
        lambda x, w, b: x + b,
        lambda x, w, b: torch.add(x, other=b),
        lambda x, w, b: (x * 1).add_(b),
        lambda x, w, b: operator.iadd(x * 1, b),
    ),
    "softmax": (
        lambda x, w, b: x.softmax(-1),
        lambda x, w, b: torch.softmax(x, dim=-1),
        lambda x, w, b: F.softmax(input=x, dim=-1),
    ),
}


@pytest.mark.parametrize(("kind", "call"), [(k, c) for k, calls in FORMS.items() for c in calls])
@pytest.mark.sampled(3)
def test_every_spelling_quantizes_every_operand(kind, call):
    model = Calls(call, weight=(4, 4) if kind in ("linear", "matmul") else (4,))
    x = torch.randn(3, 4)
    rounded = [GRID.round(t.detach()) for t in (x, model.weight, model.bias)]
    expected = FORMS[kind][0](*rounded)
    assert torch.equal(quantized(model, kind, x).model(x), expected)


@pytest.mark.parametrize(
    "write",
    [
        lambda y: F.relu(y, inplace=True),
        lambda y: y.relu_(),
        lambda y: y.relu_().mul_(1),
    ],
)
def test_an_input_that_is_written_into_is_read_as_written(write):
    class Writes(nn.Module):
        def forward(self, x):
            y = x * 1
            write(y)
            return y + 0

    x = torch.randn(3, 4)
    expected = GRID.round(x).relu()
    assert torch.equal(quantized(Writes(), "relu", x).model(x), expected)


def test_modules_called_by_keyword_keep_working():
    x = torch.randn(3, 4)
    parts = {"fc": nn.Linear(4, 2), "act": nn.GELU()}
    model = Made(lambda m, x: m.act(input=m.fc(input=x)), **parts)
    mg = quantized(model, "linear", x)
    grid = [GRID.round(t.detach()) for t in (x, model.fc.weight, model.fc.bias)]
    assert torch.equal(mg.model(x), F.gelu(F.linear(*grid)))


def test_a_subclass_that_computes_something_else_is_not_taken_for_its_parent():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = nn.Sequential(Doubled(4, 4), nn.Linear(4, 2))
    x = torch.randn(3, 4)
    mg = MaseGraph(model.eval(), dummy_in={"input": x}, custom_ops=[Doubled])
    with pytest.warns(UnreachedWarning, match=r"16 of 24 weights .*Doubled \('0'\)"):
        mg, info = passes.quantize_transform_pass(with_metadata(mg), {"by": "type", "linear": ALL})
    assert info == {"quantized": 1}
    grid = [GRID.round(t.detach()) for t in (model[0](x), model[1].weight, model[1].bias)]
    assert torch.equal(mg.model(x), F.linear(*grid))


def test_parameters_of_functions_count_and_are_reported():
    model = Calls(FORMS["linear"][1], weight=(4, 4))
    mg = quantized(model, "linear", torch.randn(3, 4))
    assert passes.calculate_avg_bits_mg_analysis_pass(mg)[1]["w_avg_bit"] == 5.0
    _, info = passes.summarize_quantization_analysis_pass(mg, {"silent": True})
    assert [row["layer"] for row in info["layers"]] == ["weight"]
    assert [s.operand for s in stored_parameters(mg)] == ["weight", "bias"]


def test_a_tied_weight_is_as_wide_as_its_widest_use():
    mg = with_metadata(MaseGraph(Tied(10, 4), dummy_in={"ids": torch.randint(0, 10, (2, 3))}))
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "embedding": ALL})
    assert passes.calculate_avg_bits_mg_analysis_pass(mg)[1]["w_avg_bit"] == 32.0
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": ALL})
    assert passes.calculate_avg_bits_mg_analysis_pass(mg)[1]["w_avg_bit"] == 5.0


def test_the_factors_of_a_product_are_noted_apart():
    spec = {"config": QuantSpec(Integer(8, 4), Integer(4, 2))}
    model = Calls(lambda x, w, b: x @ (x + b).mT)
    mg = quantized(model, "matmul", torch.randn(3, 4), spec)
    args = mg.node("matmul").meta["mase"].common.args
    assert (args["data_in_0"].precision, args["data_in_1"].precision) == ((8, 4), (4, 2))


def test_taking_formats_back_is_noted():
    model = Calls(FORMS["linear"][0], weight=(4, 4))
    x = torch.randn(3, 4)
    mg = quantized(model, "linear", x)
    only_weight = {"config": {"weight": GRID}}
    mg, info = passes.quantize_transform_pass(mg, {"by": "type", "linear": only_weight})
    args = mg.node("linear").meta["mase"].common.args
    assert [args[n].type for n in ("data_in_0", "weight", "bias")] == ["float", "integer", "float"]
    float_again = {"config": {"name": None}}
    mg, info = passes.quantize_transform_pass(mg, {"by": "type", "linear": float_again})
    assert info == {"quantized": 0}
    assert torch.equal(mg.model(x), F.linear(x, model.weight, model.bias))


def test_one_module_has_one_set_of_formats():
    mg = with_metadata(MaseGraph(twice(), dummy_in={"x": torch.randn(3, 4)}))
    same, info = passes.quantize_transform_pass(mg, {"by": "type", "linear": ALL})
    assert info == {"quantized": 2}
    assert same.model.fc.spec.weight == GRID
    names = [node.name for node in mg.nodes if node.op == "call_module"]
    other = {"config": QuantSpec.uniform(Integer(8, 4))}
    with pytest.raises(ConfigError, match="'fc' is called more than once"):
        passes.quantize_transform_pass(mg, {"by": "name", names[0]: ALL, names[1]: other})


def test_patterns_are_checked_and_may_overlap(bert_graph):
    with pytest.raises(ConfigError, match="is not a regular expression"):
        passes.quantize_transform_pass(bert_graph, {"by": "regex_name", "(": ALL})
    rules = {r"bert\..*query": ALL, r".*layer\.0.*query": {"config": {"weight": GRID}}}
    mg, info = passes.quantize_transform_pass(bert_graph, {"by": "regex_name", **rules})
    assert info == {"quantized": 2}
    assert mg.modules["bert.encoder.layer.0.attention.self.query"].spec.bias == GRID


def test_describing_and_calibrating_leave_no_trace(bert_inputs):
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls = self.calls + 1
            self.last = x.detach()
            return x

    model = nn.Sequential(nn.Linear(4, 4), Remembers())
    inputs = {"input": torch.randn(3, 4)}
    mg = with_metadata(MaseGraph(model, dummy_in=inputs, custom_ops=[Remembers]))
    assert type(mg.model.get_submodule("1").calls) is torch.Tensor
    auto = {"config": {"name": "integer", "width": 8, "frac_width": "auto"}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": auto})
    mg.model.train()
    passes.calibrate_transform_pass(mg, {"batches": [inputs]}, inplace=True)
    assert mg.model.get_submodule("1").calls.item() == 0
    assert mg.model.training
    with pytest.raises(ConfigError, match="expected mappings of inputs by name, got int"):
        passes.calibrate_transform_pass(mg, {"batches": [3]}, inplace=True)
    assert mg.model.training


def test_kept_values_do_not_stand_in_the_way(bert_graph, bert_inputs):
    config = {"dummy_in": bert_inputs, "add_value": True}
    mg, _ = passes.add_common_metadata_analysis_pass(bert_graph, config)
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": ALL})
    assert not torch.equal(
        quantized.model(**bert_inputs)["logits"], mg.model(**bert_inputs)["logits"]
    )
