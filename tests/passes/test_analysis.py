import csv

import pytest
import torch

from chop import MaseGraph, passes
from chop.errors import GraphError
from chop.formats import Integer, QuantSpec
from chop.passes.analysis.summarize_quantization import PoorFitWarning
from chop.passes.base import PASSES, graph_pass
from tests.passes.conftest import with_metadata

FOUR_TWO = {"by": "type", "linear": {"config": QuantSpec.uniform(Integer(4, 2))}}


def test_common_metadata_describes_every_node(bert_graph):
    node = bert_graph.node("bert_encoder_layer_0_intermediate_dense")
    common = node.meta["mase"].common
    assert (common.mase_op, common.mase_type) == ("linear", "module_related_func")
    batch, length = bert_graph.model.example_inputs["input_ids"].shape
    assert common.args["data_in_0"].shape == (batch, length, 32)
    assert common.results["data_out_0"].shape == (batch, length, 64)
    assert node.meta["mase"].parameters["common"]["args"]["weight"]["shape"] == (64, 32)
    assert node.meta["mase"]["common"]["results"]["data_out_0"]["torch_dtype"] == torch.float32
    assert all(n.meta["mase"].common.mase_op for n in bert_graph.nodes)
    assert all(
        info.value is None
        for n in bert_graph.nodes
        for info in n.meta["mase"].common.results.values()
    )


def test_values_are_kept_only_when_asked_for(bert_graph, bert_inputs):
    mg, _ = passes.add_common_metadata_analysis_pass(
        bert_graph, {"dummy_in": bert_inputs, "add_value": True}
    )
    expected = mg.model(**bert_inputs)["logits"]
    info = mg.node("classifier").meta["mase"].common.results["data_out_0"]
    assert torch.equal(info.value, expected)
    assert info.shape == (3, 2)


def test_metadata_needs_no_real_memory():
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(2**15, 2**15), torch.nn.ReLU())
    mg = with_metadata(MaseGraph(model, dummy_in={"input": torch.empty(2, 2**15, device="meta")}))
    assert mg.node("_0").meta["mase"].common.results["data_out_0"].shape == (2, 2**15)


def test_unknown_inputs_are_named(bert_graph):
    with pytest.raises(GraphError, match="no input 'input_idz': did you mean 'input_ids'"):
        passes.add_common_metadata_analysis_pass(bert_graph, {"dummy_in": {"input_idz": 1}})


def test_both_call_styles(bert_graph):
    assert passes.init_metadata_analysis_pass(bert_graph, None)[0] is bert_graph
    assert passes.init_metadata_analysis_pass(graph=bert_graph)[0] is bert_graph
    mg, info = passes.add_common_metadata_analysis_pass(bert_graph, pass_args={"add_value": False})
    assert mg is bert_graph
    assert info == {}


def test_eight_bits_are_eight_bits(bert_graph):
    config = {"by": "type", "default": {"config": {"name": "integer", "width": 8, "frac_width": 4}}}
    quantized, _ = passes.quantize_transform_pass(bert_graph, config)
    _, bits = passes.calculate_avg_bits_mg_analysis_pass(quantized)
    count = sum(p.numel() for p in bert_graph.model.parameters())
    assert bits == {"w_avg_bit": 8.0, "data_avg_bit": 8.0, "weight_bytes": count}
    _, before = passes.calculate_avg_bits_mg_analysis_pass(bert_graph)
    assert before == {"w_avg_bit": 32.0, "data_avg_bit": 32.0, "weight_bytes": 4 * count}


def test_summary_warns_of_layers_that_vanish(bert_graph, tmp_path):
    quantized, _ = passes.quantize_transform_pass(bert_graph, FOUR_TWO)
    with pytest.warns(PoorFitWarning, match="become zero.*Try frac_width 'auto'"):
        _, info = passes.summarize_quantization_analysis_pass(
            quantized, {"save_dir": tmp_path / "new", "original_graph": bert_graph}
        )
    row = next(row for row in info["layers"] if row["layer"] == "classifier")
    weight = bert_graph.model.classifier.weight
    assert row["share_rounded_to_zero"] == pytest.approx(
        (weight.abs() <= 0.125).float().mean().item()
    )
    linear = next(r for r in info["operators"] if r["operator"] == "linear")
    assert (linear["count"], linear["formats"], linear["bits_after"]) == (14, "integer 4.2", 4.0)
    assert info["bits_before"] == 32.0
    assert info["bits_after"] < 32.0
    with (tmp_path / "new" / "layers.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 14


def test_summary_is_quiet_where_weights_fit(bert_graph, capsys):
    config = {
        "by": "type",
        "linear": {"config": {"name": "integer", "width": 8, "frac_width": "auto"}},
    }
    quantized, _ = passes.quantize_transform_pass(bert_graph, config)
    _, info = passes.summarize_quantization_analysis_pass(quantized)
    assert max(row["share_rounded_to_zero"] for row in info["layers"]) < 0.1
    assert "linear" in capsys.readouterr().out


def test_passes_are_registered_once():
    assert PASSES["quantize_transform_pass"] is passes.quantize_transform_pass
    with pytest.raises(Exception, match="is defined twice, by chop and by tests"):

        @graph_pass(config=dict)
        def quantize_transform_pass(mg, config):
            return {}
