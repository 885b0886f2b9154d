import copy

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError, GraphError
from chop.formats import Integer, MXInt, QuantSpec, ScaleInteger
from chop.nn.packed import pack
from chop.nn.quantized import QuantizedOperator, QuantLinear, QuantScaledDotProductAttention
from chop.quantization.calibration import sample_operands

AUTO = {
    "by": "type",
    "default": {"config": {"name": "integer", "width": 6, "frac_width": "minmax"}},
}


def operators_of(mg):
    return {n: m for n, m in mg.modules.items() if isinstance(m, QuantizedOperator)}


def test_every_format_that_waits_is_fitted_to_what_flows(bert_graph, bert_inputs):
    quantized, _ = passes.quantize_transform_pass(bert_graph, AUTO)
    seen = {}
    hook = bert_graph.modules["classifier"].register_forward_pre_hook(
        lambda _, args: seen.update(x=args[0])
    )
    bert_graph.model(**bert_inputs)
    hook.remove()
    fitted, info = passes.calibrate_transform_pass(quantized, {"batches": [bert_inputs]})
    assert info["fitted"] > 30
    for module in operators_of(fitted).values():
        if isinstance(module, QuantScaledDotProductAttention):
            continue  # its three steps are fitted instead
        assert all(getattr(module.spec, operand).is_fitted for operand in module.operands)
    assert fitted.modules["classifier"].spec.data_in == Integer(6, "minmax").fitted(seen["x"])
    # the graph that came in still waits
    assert not quantized.modules["classifier"].spec.data_in.is_fitted


def test_attention_gets_a_fraction_per_step(bert_graph, bert_inputs):
    quantized, _ = passes.quantize_transform_pass(bert_graph, AUTO)
    fitted, _ = passes.calibrate_transform_pass(quantized, {"batches": [bert_inputs]})
    steps = {
        name.rpartition(".")[2]: module.spec
        for name, module in operators_of(fitted).items()
        if ".layer.0." in name and name.endswith(("product", "softmax", "context"))
    }
    # probabilities lie in 0..1: five of six bits are fraction
    assert steps["context"].weight.frac_width >= 5
    assert steps["product"].data_in.is_fitted


def test_no_batches_and_no_quantization_are_errors(bert_graph):
    with pytest.raises(GraphError, match="run quantize_transform_pass"):
        passes.calibrate_transform_pass(bert_graph, {"batches": []})
    quantized, _ = passes.quantize_transform_pass(bert_graph, AUTO)
    with pytest.raises(ConfigError, match="missing key 'batches'"):
        passes.calibrate_transform_pass(quantized)


def test_many_values_are_sampled_evenly_and_extremes_are_kept(net_graph):
    config = {"name": "integer", "width": 8, "frac_width": "minmax"}
    quantized, _ = passes.quantize_transform_pass(net_graph, {"conv2d": {"config": config}})
    batches = [{"x": torch.rand(9000, 1, 6, 7)} for _ in range(4)]
    batches[1]["x"][5, 0, 2, 3] = 500.0
    batches[2]["x"][0, 0, 0, 0] = float("inf")
    fitted, _ = passes.calibrate_transform_pass(quantized, {"batches": batches})
    assert fitted.modules["conv"].spec.data_in == Integer(8, -2)


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"width": 8, "frac_width": "percentile", "data_in_percentile": 99}, Integer(8, 6)),
        ({"width": 8, "frac_width": "percentile", "data_in_percentile": 100}, Integer(8, 0)),
        ({"width": "auto", "frac_width": 4}, Integer(12, 4)),
        ({"width": 8, "frac_width": "minmax"}, Integer(8, 0)),
    ],
)
def test_every_rule_reaches_the_operands(net_graph, settings, expected):
    config = {"name": "integer", **settings}
    quantized, _ = passes.quantize_transform_pass(net_graph, {"conv2d": {"config": config}})
    noted = quantized.node("conv").meta["mase"].common.args["data_in_0"]
    assert noted.precision == ((32, 4) if settings["width"] == "auto" else (8,))
    x = torch.rand(200, 1, 6, 7) + 0.5
    x[3, 0, 1, 2] = 100.0
    fitted, info = passes.calibrate_transform_pass(quantized, {"batches": x_by_name(x)})
    spec = fitted.modules["conv"].spec
    assert (info["fitted"], spec.data_in) == (1, expected)
    assert all(number_format.is_fitted for _, number_format in spec.items())
    noted = fitted.node("conv").meta["mase"].common.args["data_in_0"]
    assert noted.precision == (expected.width, expected.frac_width)


def x_by_name(x):
    return [{"x": part} for part in x.split(64)]


def test_packed_layers_are_calibrated_too():
    spec = QuantSpec(Integer(8, "auto"), MXInt(4), data_out=Integer(8, "auto"))
    layers = QuantLinear(160, 128, config=spec), QuantLinear(128, 4, config=spec)
    model = nn.Sequential(*layers).eval()
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for step in rounded:
            step.weight.copy_(MXInt(4).round(step.weight))
    packed = nn.Sequential(*(pack(layer, exact=True) for layer in layers)).eval()
    batches = [{"input": torch.randn(5, 160)} for _ in range(2)]
    wanted = {name: ["data_in", "data_out"] for name in ("0", "1")}
    expected = sample_operands(rounded, batches, wanted)
    found = sample_operands(packed, batches, wanted)
    for name, operands in wanted.items():
        for operand in operands:
            assert torch.equal(found[name][operand], expected[name][operand])
    assert packed[0].spec == spec and not packed[0].spec.is_fitted


def scaled_graph(net_graph, config, **settings):
    """Two linear layers in one format, and a batch with the largest input after a smaller one."""
    torch.manual_seed(0)
    rules = {name: {"config": config} for name in ("fc1", "fc2")}
    dynamic, _ = passes.quantize_transform_pass(net_graph, {"by": "name", **rules})
    large = 10 * torch.rand(5, 1, 6, 7)
    batches = [{"x": large / 4}, {"x": large}, {"x": large / 2}]
    static, info = passes.calibrate_transform_pass(dynamic, {"batches": batches, **settings})
    return dynamic, static, info, batches


SCALED = {"name": "scale_integer", "width": 8}


@pytest.mark.parametrize(
    "config",
    [
        SCALED,
        {**SCALED, "is_signed": False},
        {**SCALED, "weight_granularity": "channel"},
        {"name": "binary_residual", "levels": 3},
    ],
    ids=["signed", "unsigned", "weight per channel", "levels"],
)
def test_static_scales_are_those_of_everything_that_was_seen(net_graph, config):
    dynamic, static, info, batches = scaled_graph(net_graph, config, static_scales=True)
    assert info == {"fitted": 0, "static": 2, "dynamic": 0}
    floats, seen = net_graph, []
    hook = floats.modules["fc1"].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    for batch in batches:
        floats.model(**batch)
    hook.remove()
    before, after = (mg.modules["fc1"] for mg in (dynamic, static))
    everything = torch.cat(seen).detach()
    expected = before.quantize("data_in", everything)
    assert torch.equal(after.quantize("data_in", everything), expected)
    parts = [after.quantize("data_in", part) for part in seen]
    assert torch.equal(torch.cat(parts), expected)
    assert not torch.equal(before.quantize("data_in", seen[0]), parts[0])
    assert after.spec.weight == before.spec.weight
    if config is SCALED:
        assert torch.equal(before.quantize("data_in", seen[1]), parts[1])  # it has the largest
        assert after.spec.data_in.scales == (pytest.approx(everything.abs().max().item() / 127),)


def test_scales_stay_dynamic_unless_asked(net_graph):
    dynamic, same, info, _ = scaled_graph(net_graph, SCALED)
    assert info == {"fitted": 0, "static": 0, "dynamic": 2}
    assert same.diff(dynamic) == []


def test_scales_of_parts_stay_dynamic_and_are_counted(net_graph):
    config = {
        "data_in": {"name": "mxint", "width": 8},
        "weight": SCALED,
        "bias": SCALED,
        "data_out": {**SCALED, "granularity": "row"},
    }
    _, static, info, _ = scaled_graph(net_graph, config, static_scales=True)
    assert info == {"fitted": 0, "static": 0, "dynamic": 4}
    assert static.modules["fc1"].spec.data_out.scales is None


def test_learned_scales_are_not_fixed(net_graph):
    config = QuantSpec(ScaleInteger(8), ScaleInteger(8), gradient="lsq")
    _, started, info, _ = scaled_graph(net_graph, config, static_scales=True)
    assert info == {"fitted": 2, "static": 0, "dynamic": 0}
    assert started.modules["fc1"].spec == config


def test_files_keep_static_scales(net_graph, tmp_path):
    _, static, _, batches = scaled_graph(net_graph, SCALED, static_scales=True)
    static.export(tmp_path / "static")
    again = MaseGraph.from_checkpoint(tmp_path / "static")
    assert again.modules["fc2"].spec == static.modules["fc2"].spec
    assert again.modules["fc2"].spec.data_in.scales is not None
    for batch in batches:
        assert torch.equal(again.model(**batch), static.model(**batch))
