import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.nn.quantized import QuantLinear
from chop.passes.analysis.profile_statistics import NotFiniteWarning

WEIGHTS = {"variance_precise": {"device": "cpu", "dims": "all"}}
ACTIVATIONS = {"range_quantile": {"device": "cpu", "dims": "all", "quantile": 0.97}}


def batches(count=4, rows=8):
    generator = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(rows, 1, 6, 7, generator=generator)} for _ in range(count)]


def profile(mg, **settings):
    return passes.profile_statistics_analysis_pass(mg, {"quiet": True, **settings})


def list_inputs(mg, path, data):
    seen = []
    hook = mg.modules[path].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        for batch in data:
            mg.model(**batch)
    hook.remove()
    return torch.cat(seen).double().numpy()


def test_by_type_measures_what_really_flows(net_graph, capsys):
    data = batches()
    mg, info = passes.profile_statistics_analysis_pass(
        net_graph,
        {
            "by": "type",
            "target_weight_nodes": ["linear"],
            "target_activation_nodes": ["linear", "relu"],
            "weight_statistics": WEIGHTS,
            "activation_statistics": ACTIVATIONS,
            "input_generator": iter(data),
            "num_samples": 1000,
        },
    )
    software = mg.node("fc1").meta["mase"].parameters["software"]
    weight = mg.modules["fc1"].weight.detach().double().numpy()
    found = software["args"]["weight"]["stat"]["variance_precise"]
    np.testing.assert_allclose(found["variance"], weight.var(ddof=1))
    assert "variance_precise" in software["args"]["bias"]["stat"]
    x = list_inputs(mg, "fc1", data)
    found = software["args"]["data_in_0"]["stat"]["range_quantile"]
    np.testing.assert_allclose([found["min"], found["max"]], np.quantile(x, [0.03, 0.97]))
    assert found["count"] == x.size == 4 * 8 * 4
    # the functional relu has no module, and its result is never negative
    relu = info["statistics"]["relu"]["results"]["data_out_0"]["range_quantile"]
    assert relu["min"] == 0 < relu["max"]
    assert set(info["statistics"]) == {"fc1", "fc2", "relu"}
    table = capsys.readouterr().out
    assert "range_quantile" in table and "fc2" in table


def test_by_name_keeps_channels_apart(net_graph):
    data = batches()
    per_channel = {"range_min_max": {"dims": [0, 2, 3]}, "histogram": {"dims": "all"}}
    mg, info = profile(
        net_graph,
        by="name",
        target_activation_nodes=["bn"],
        activation_statistics=per_channel,
        input_generator=data,
    )
    x = list_inputs(mg, "bn", data)
    found = info["statistics"]["bn"]["args"]["data_in_0"]
    assert np.array_equal(found["range_min_max"]["min"], x.min((0, 2, 3)))
    assert np.array_equal(found["range_min_max"]["max"], x.max((0, 2, 3)))
    assert found["histogram"]["counts"].sum() == x.size


def test_only_as_many_batches_are_drawn_as_needed(net_graph):
    drawn = []

    def endless():
        while True:
            drawn.append(1)
            yield {"x": torch.ones(8, 1, 6, 7), "unused": None}

    settings = {"target_activation_nodes": ["relu"], "activation_statistics": ACTIVATIONS}
    _, info = profile(net_graph, **settings, input_generator=endless(), num_samples=20)
    assert len(drawn) == 3
    result = info["statistics"]["relu"]["args"]["data_in_0"]["range_quantile"]
    assert result["count"] == 24 * 4 * 6 * 7


def test_the_model_is_left_as_it_was_even_after_an_error(net_graph):
    def broken():
        yield batches()[0]
        raise RuntimeError("the disk is gone")

    net_graph.model.train()
    before = {key: value.clone() for key, value in net_graph.model.state_dict().items()}
    settings = {"target_activation_nodes": ["conv2d"], "activation_statistics": ACTIVATIONS}
    with pytest.raises(RuntimeError, match="the disk is gone"):
        profile(net_graph, **settings, input_generator=broken())
    assert net_graph.model.training
    for module in net_graph.model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
    after = net_graph.model.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert "args" not in net_graph.node("conv").meta["mase"].software


def test_what_a_mask_hides_is_zero(net_graph):
    quantized, _ = passes.quantize_transform_pass(
        net_graph, {"linear": {"config": {"name": "integer", "width": 8, "frac_width": 4}}}
    )
    layer = quantized.modules["fc1"]
    assert isinstance(layer, QuantLinear)
    layer.register_buffer("weight_mask", torch.zeros(8, 4, dtype=torch.bool))
    settings = {"target_weight_nodes": ["linear"], "weight_statistics": {"abs_mean": {}}}
    _, info = profile(quantized, **settings)
    assert info["statistics"]["fc1"]["args"]["weight"]["abs_mean"]["abs_mean"] == 0
    assert info["statistics"]["fc2"]["args"]["weight"]["abs_mean"]["abs_mean"] > 0


def test_attention_and_integer_inputs_of_a_transformer(bert_graph, bert_inputs):
    _, info = profile(
        bert_graph,
        target_activation_nodes=["scaled_dot_product_attention", "embedding"],
        activation_statistics={"range_min_max": {}},
        input_generator=[bert_inputs],
    )
    attention = next(v for k, v in info["statistics"].items() if "attention" in k)
    assert {"data_in_0", "data_in_1", "data_in_2"} <= set(attention["args"])
    words = next(v for k, v in info["statistics"].items() if "word_embeddings" in k)
    assert set(words) == {"results"}


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"target_weight_nodes": ["linaer"], "weight_statistics": WEIGHTS},
            "did you mean 'linear'",
        ),
        (
            {"target_weight_nodes": ["relu"], "weight_statistics": WEIGHTS},
            "profile_statistics_analysis_pass.target_weight_nodes: 'relu' has no parameters",
        ),
        ({"target_weight_nodes": ["linear"]}, "target_weight_nodes needs weight_statistics"),
        ({"weight_statistics": {"variance": {}}}, "unknown statistic 'variance'"),
        (
            {"target_activation_nodes": ["relu"], "activation_statistics": ACTIVATIONS},
            "need batches as 'input_generator'",
        ),
    ],
)
def test_wrong_settings_are_refused(net_graph, settings, message):
    with pytest.raises(ConfigError, match=message):
        profile(net_graph, **settings)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.0])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_parameter_that_is_no_number_is_warned_of(name, value):
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(4, 3)
    mg = MaseGraph(net, dummy_in={"input": torch.randn(2, 3)})
    settings = {
        "by": "type",
        "target_weight_nodes": ["linear"],
        "target_activation_nodes": ["linear"],
        "weight_statistics": {"variance_precise": {"dims": "all"}},
        "activation_statistics": {"range_min_max": {"dims": "all"}},
        "input_generator": [{"input": x}],
        "quiet": True,
    }
    getattr(net[2], name).data[0] = value
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        passes.profile_statistics_analysis_pass(mg, settings)
    told = [str(each.message) for each in given if each.category is NotFiniteWarning]
    assert len(told) == (value != 1)
    assert all(re.search(rf"values in _2\.{name};", text) for text in told)
