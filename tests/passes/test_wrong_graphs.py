"""Passes on graphs that they cannot work on: one sentence with the cause and the way out."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError, GraphError
from chop.ir.nodes import get_mase_op, get_node_actual_target
from chop.nn.quantized import QuantLinear

INTEGER = {"name": "integer", "width": 8, "frac_width": 4}
LINEAR = {"linear": {"config": INTEGER}}
HALF = {"weight": {"sparsity": 0.5}}
X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


class Twice(nn.Module):
    """Calls one layer twice; on the meta device or complex on request."""

    def __init__(self, **settings):
        super().__init__()
        self.layer = nn.Linear(4, 4, **settings)

    def forward(self, x):
        return self.layer(self.layer(x)).abs()


def graph(x=X, **settings):
    return MaseGraph(Twice(**settings), dummy_in={"x": x})


def on_meta():
    return graph(X.to("meta"), device="meta")


def with_other_layer():
    mg = graph()
    mg.model.layer = nn.Linear(3, 3)
    return passes.quantize_transform_pass(mg, LINEAR)


def quantized_norm():
    mg = MaseGraph(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)), dummy_in={"input": X})
    return passes.quantize_transform_pass(mg, LINEAR)[0]


@pytest.mark.parametrize(
    ("call", "error", "expected"),
    [
        (
            lambda: passes.prune_transform_pass(on_meta(), HALF),
            GraphError,
            "prune_transform_pass: parameter 'layer.weight' is on the meta device",
        ),
        (
            lambda: passes.export_interface_pass(on_meta(), {"to": "onnx", "path": "m.onnx"}),
            GraphError,
            "parameter 'layer.weight' is on the meta device",
        ),
        (with_other_layer, GraphError, "the graph fails on its inputs: mat1 and mat2"),
        (
            lambda: passes.quantize_transform_pass(
                graph(), {"by": "name", "layer_1": {"config": INTEGER}}
            ),
            ConfigError,
            "called more than once .* with one rule for 'layer'",
        ),
        (
            lambda: passes.quantize_transform_pass(
                graph(X.to(torch.complex64), dtype=torch.complex64), {"linear": LINEAR["linear"]}
            ),
            ConfigError,
            "none whose results are real|it has: abs",
        ),
        (
            lambda: passes.profile_statistics_analysis_pass(
                graph(),
                {
                    "target_weight_nodes": ["linear"],
                    "weight_statistics": {"range_min_max": {"device": "meta"}},
                },
            ),
            ConfigError,
            r"\.device: 'meta' is not available here",
        ),
    ],
)
def test_wrong_graphs(call, error, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=expected):
        call()


def test_missing_data_can_be_loaded_as_the_message_says():
    model = Twice(device="meta")
    model.load_state_dict(Twice().state_dict(), assign=True)
    pruned, _ = passes.prune_transform_pass(MaseGraph(model, dummy_in={"x": X}), HALF)
    assert (pruned.model.layer.weight == 0).sum() == 8


def test_a_pass_that_skips_all_layers_says_why(caplog):
    passes.smoothquant_transform_pass(quantized_norm(), {"batches": [{"input": X}]})
    assert "nothing was changed; '_1': it is quantized already" in caplog.text


def test_initializing_again_empties_no_later_pass():
    quantized, _ = passes.quantize_transform_pass(graph(), LINEAR)
    expected = passes.calculate_avg_bits_mg_analysis_pass(quantized)[1]
    passes.init_metadata_analysis_pass(quantized)
    assert passes.calculate_avg_bits_mg_analysis_pass(quantized)[1] == expected
    passes.init_metadata_analysis_pass(quantized)
    assert passes.quantize_transform_pass(quantized, LINEAR)[1] == {"quantized": 2}


def test_nodes_of_another_graph_and_names_are_no_nodes():
    with pytest.raises(GraphError, match="'layer' is of another graph"):
        graph().replace(graph().node("layer"), nn.Linear(4, 4))
    for query in (get_mase_op, get_node_actual_target):
        with pytest.raises(GraphError, match="expected a node, got 'layer'"):
            query("layer")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LINEAR["linear"], r"'config' belongs in the rule of an operator"),
        (
            {"linear": {"config": {"name": "mxint", "weight_frac_width": 4}}},
            "'weight_frac_width': a key of integer, .* and the format is mxint",
        ),
    ],
)
def test_configs_of_another_place(config, expected):
    with pytest.raises(ConfigError, match=expected):
        passes.quantize_transform_pass(graph(), config)


def test_batches_by_other_names():
    quantized, _ = passes.quantize_transform_pass(graph(), LINEAR)
    with pytest.raises(ConfigError, match="expected a batch with the inputs x, got X"):
        passes.calibrate_transform_pass(quantized, {"batches": [{"X": X}]})


def test_a_bias_is_no_tensor():
    with pytest.raises(ConfigError, match="a Parameter .* Write bias=layer.bias is not None"):
        QuantLinear(4, 4, nn.Linear(4, 4).bias, config=INTEGER)


def test_pruned_activations_are_named_where_onnx_lacks_them(tmp_path, monkeypatch):
    def refuse(*args, **settings):
        raise RuntimeError("No ONNX function found for aten.sort")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    pruned, _ = passes.prune_transform_pass(graph(), {"activation": {"sparsity": 0.5}})
    with pytest.raises(GraphError, match="aten.sort; its activations are pruned; .*detach_hook"):
        passes.export_onnx_interface_pass(pruned, {"path": tmp_path / "m.onnx"})


def test_inputs_without_names():
    class Sum(nn.Module):
        def forward(self, *xs):
            return sum(xs)

    for settings in ({}, {"dummy_in": {"xs": (X, X)}}):
        with pytest.raises(ConfigError, match=r"takes \*xs, and inputs of a graph have names"):
            MaseGraph(Sum(), **settings)


def test_names_of_module_passes():
    with pytest.raises(AttributeError, match="use chop.passes.module.quantize_module_transform"):
        _ = passes.quantize_module_transform_pass


@pytest.mark.parametrize("parameters", ["mg", "mg, config, other"])
def test_own_passes_take_a_graph_and_settings(parameters):
    wrong_transform_pass = eval(f"lambda {parameters}: {{}}")
    wrong_transform_pass.__name__ = "wrong_transform_pass"
    with pytest.raises(ConfigError, match=r"expected @graph_pass.* \(mg, config\), but"):
        passes.graph_pass(config=dict)(wrong_transform_pass)
