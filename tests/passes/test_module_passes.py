"""Passes on plain modules."""

import copy

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.formats import Integer, MXInt, QuantSpec
from chop.ir.parameters import ParameterCount
from chop.ir.unreached import UnreachedWarning
from chop.nn.lora import LoraLinear
from chop.nn.packed import pack
from chop.nn.quantized import QuantConv2d, QuantizedOperator, QuantLinear
from chop.passes.module import (
    calculate_avg_bits_module_analysis_pass,
    quantize_module_transform_pass,
    report_trainable_parameters_analysis_pass,
)
from tests.passes.conftest import Net, with_metadata

OPERANDS = ("data_in", "weight", "bias")


def integer(width, frac_width):
    fields = {"width": width, "frac_width": frac_width}
    keys = {f"{operand}_{key}": value for operand in OPERANDS for key, value in fields.items()}
    return {"config": {"name": "integer", **keys}}


def quantized_paths(module):
    return {name for name, m in module.named_modules() if isinstance(m, QuantizedOperator)}


@pytest.fixture
def net():
    return Net().eval()


def test_trainable_parameters_are_counted_once(net, capsys):
    net.conv.weight.requires_grad_(False)
    same, info = report_trainable_parameters_analysis_pass(net, pass_args={})
    assert same is net
    assert (info["total"], info["trainable"]) == (4 * 9 + 4 + 8 + 40 + 72, 4 + 8 + 40 + 72)
    assert info["share"] == pytest.approx(124 / 160)
    rows = {row["submodule"]: row for row in info["rows"]}
    assert rows["conv"] == {"submodule": "conv", "total": 40, "trainable": 4, "share": 0.1}
    assert list(rows) == ["conv", "bn", "fc1", "fc2"]
    printed = capsys.readouterr().out
    assert "Trainable parameters" in printed and "(whole model)" in printed

    tied = nn.ModuleDict({"outer": nn.ModuleList([net.fc2, net.fc2])})
    _, info = report_trainable_parameters_analysis_pass(tied, {"depth": 1, "silent": True})
    assert info["total"] == 72 and [row["submodule"] for row in info["rows"]] == ["outer"]
    assert capsys.readouterr().out == ""


def test_packed_parameters_count_once_and_do_not_train(net):
    shared = QuantLinear.from_float(net.fc2, QuantSpec(weight=MXInt()))
    packed = pack(shared)
    tied = nn.Sequential(net.fc1, packed, packed, nn.Sequential(pack(shared)))
    _, info = report_trainable_parameters_analysis_pass(tied, {"silent": True})
    rows = {row["submodule"]: row for row in info["rows"]}
    # The bias stays a parameter; codes that were made twice are stored twice.
    assert rows["1"] == {"submodule": "1", "total": 72, "trainable": 8, "share": 8 / 72}
    assert (info["total"], info["trainable"]) == (40 + 72 + 64, 40 + 8)
    for layer in (net.fc1, packed):
        assert ParameterCount.of(layer).total == layer.weight.numel() + layer.bias.numel()


def test_a_module_without_parameters():
    _, info = report_trainable_parameters_analysis_pass(nn.ReLU())
    assert info == {"total": 0, "trainable": 0, "share": 0.0, "rows": []}
    _, info = calculate_avg_bits_module_analysis_pass(nn.ReLU())
    assert info == {"w_avg_bit": 0.0, "weight_bytes": 0.0}


@pytest.mark.parametrize(
    "config, expected",
    [
        ({"by": "type", "linear": integer(8, 4)}, {"fc1", "fc2"}),
        ({"linear": integer(8, 4), "conv2d": integer(8, 4)}, {"fc1", "fc2", "conv"}),
        ({"by": "name", "fc2": integer(8, 4)}, {"fc2"}),
        ({"by": "regex_name", r"fc\d": integer(8, 4)}, {"fc1", "fc2"}),
        ({"by": "type", "default": integer(8, 4)}, {"conv", "bn", "fc1", "fc2"}),
    ],
)
def test_modules_are_selected_as_in_graphs(net, config, expected):
    before, settings = copy.deepcopy(net.state_dict()), copy.deepcopy(config)
    quantized, info = quantize_module_transform_pass(net, config)
    assert quantized_paths(quantized) == expected and info == {"quantized": len(expected)}
    assert not quantized_paths(net) and config == settings
    assert quantized is not net and quantized.fc2.weight is not net.fc2.weight
    after = quantized.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)


class Small(Net):
    """`Net` up to its last layer."""

    def forward(self, x):
        x = self.bn(self.conv(x)).relu().mean((2, 3))
        return self.fc2(self.fc1(x))


def test_the_same_as_on_a_graph():
    net, x = Small().eval(), torch.randn(3, 1, 6, 7)
    net_graph = with_metadata(MaseGraph(net, dummy_in={"x": x}))
    config = {"by": "type", "linear": integer(6, 3), "conv2d": integer(5, 2)}
    by_graph, _ = passes.quantize_transform_pass(net_graph, config)
    expected = by_graph.model(x)
    by_module, _ = quantize_module_transform_pass(net, config)
    assert torch.equal(by_module(x), expected) and (net(x) - expected).abs().max() > 0.01
    captured, _ = quantize_module_transform_pass(net_graph.model, config)
    assert torch.equal(captured(x), expected) and not quantized_paths(net_graph.model)
    bits = [calculate_avg_bits_module_analysis_pass(m)[1] for m in (by_module, captured)]
    _, of_graph = passes.calculate_avg_bits_mg_analysis_pass(by_graph)
    assert bits[0] == bits[1] == {key: of_graph[key] for key in ("w_avg_bit", "weight_bytes")}
    assert bits[0]["w_avg_bit"] == pytest.approx((5 * 40 + 32 * 8 + 6 * 112) / 160)


def test_a_module_at_two_paths_stays_one():
    layer = nn.Linear(4, 4)
    net = nn.Sequential(layer, nn.ReLU(), layer)
    quantized, info = quantize_module_transform_pass(net, {"by": "name", "2": integer(8, 4)})
    assert quantized[0] is quantized[2] and type(quantized[0]) is QuantLinear
    assert info == {"quantized": 1}
    alone, _ = quantize_module_transform_pass(layer, {"linear": integer(8, 4)})
    assert type(alone) is QuantLinear and type(layer) is nn.Linear


def test_what_is_quantized_already_takes_new_formats():
    conv = QuantConv2d.from_float(nn.Conv2d(1, 2, 3), QuantSpec.uniform(Integer(8, 4)))
    net = nn.Sequential(conv, nn.Flatten(), LoraLinear(8, 2, rank=2))
    config = {"linear": integer(8, 4), "conv2d": integer(4, 2)}
    quantized, info = quantize_module_transform_pass(net, config)
    assert quantized[0].spec.weight == Integer(4, 2) and net[0].spec.weight == Integer(8, 4)
    assert type(quantized[2]) is LoraLinear and type(quantized[2].lora_A) is nn.Linear
    assert info == {"quantized": 2}, "the inside of an adapter is no layer of its own"


def test_torchs_transformer_really_is_quantized():
    """Its fast path reads weights without calling their modules."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with pytest.warns(UnreachedWarning, match=r"\(43%\).*MultiheadAttention.*MaseGraph reaches"):
        quantized, _ = quantize_module_transform_pass(layer, {"linear": integer(3, 1)})
    assert quantized_paths(quantized) == {"linear1", "linear2"}
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        fast = quantized(x)
    slow = quantized(x)
    torch.testing.assert_close(fast, slow)
    assert (fast - layer(x)).abs().max() > 0.01


@pytest.mark.parametrize(
    "config, message",
    [
        ({"linaer": integer(8, 4)}, "quantize_module_transform_pass: no .* did you mean 'linear'"),
        ({"by": "name", "fc3": integer(8, 4)}, "did you mean 'fc[12]'"),
        ({"by": "regex_name", "conv.+": integer(8, 4)}, "matches 'conv.+'"),
        ({"layer_norm": integer(8, 4)}, "'layer_norm'; it has: batch_norm2d, conv2d, linear"),
        ({}, "nothing to quantize"),
    ],
)
def test_mistakes_are_named(net, config, message):
    with pytest.raises(ConfigError, match=message):
        quantize_module_transform_pass(net, config)


def test_a_graph_is_not_a_module(net_graph):
    for module_pass in (
        calculate_avg_bits_module_analysis_pass,
        quantize_module_transform_pass,
        report_trainable_parameters_analysis_pass,
    ):
        with pytest.raises(
            ConfigError, match=r"got MaseGraph; pass its attribute model \(mg.model\)"
        ):
            module_pass(net_graph, {})
    with pytest.raises(ConfigError, match="unknown key 'dept': did you mean 'depth'"):
        report_trainable_parameters_analysis_pass(net_graph.model, {"dept": 1})
