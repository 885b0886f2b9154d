import copy
import pickle

import pytest
import torch

from chop import MaseGraph, passes
from chop.errors import GraphError
from chop.ir.metadata import MaseMetadata, TensorInfo
from chop.passes.graph.utils import (
    deepcopy_mase_graph,
    get_mase_op,
    get_mase_type,
    get_node_actual_target,
)

QUANTIZE = {"by": "type", "linear": {"config": {"name": "integer", "width": 8, "frac_width": 5}}}
PRUNE = {
    "weight": {"sparsity": 0.5, "method": "l1-norm", "scope": "local"},
    "activation": {"sparsity": 0.1, "method": "random", "scope": "local"},
}


def test_every_tensor_gets_room_for_statistics(net_graph):
    passes.add_software_metadata_analysis_pass(net_graph)
    node = net_graph.node("fc1")
    software = node.meta["mase"]["software"]
    assert software["args"] == {name: {"stat": {}} for name in ("data_in_0", "weight", "bias")}
    assert software["results"] == {"data_out_0": {"stat": {}}}
    software["args"]["weight"]["stat"]["mean"] = 1.0
    passes.add_software_metadata_analysis_pass(net_graph, {})
    assert node.meta["mase"].parameters["software"]["args"]["weight"]["stat"] == {"mean": 1.0}


def test_nodes_that_compute_nothing_need_no_logic(bert_graph):
    _, info = passes.add_hardware_metadata_analysis_pass(bert_graph)
    implicit = {n.name: n.meta["mase"]["hardware"]["is_implicit"] for n in bert_graph.nodes}
    assert info == {
        "implicit": sum(implicit.values()),
        "explicit": len(implicit) - sum(implicit.values()),
        "interval": None,
    }
    assert implicit["input_ids"] and implicit["output"]
    by_operator = {get_mase_op(n): implicit[n.name] for n in bert_graph.nodes}
    assert by_operator["dropout"] and by_operator["view"]
    assert not any(
        by_operator[name]
        for name in ("linear", "layer_norm", "gelu", "add", "softmax")
        if name in by_operator
    )


def test_true_metadata_is_confirmed(net_graph, bert_graph):
    for mg in (net_graph, bert_graph):
        _, info = passes.verify_common_metadata_analysis_pass(mg)
        assert info == {"checked": len(mg.nodes)}
        small, _ = passes.quantize_transform_pass(mg, QUANTIZE)
        assert passes.verify_common_metadata_analysis_pass(small)[1] == info


def test_other_example_inputs_than_those_of_the_capture(bert_graph, bert_inputs):
    passes.add_common_metadata_analysis_pass(bert_graph, {"dummy_in": bert_inputs})
    assert bert_graph.node("input_ids").meta["mase"].common.results["data_out_0"].shape == (3, 11)
    passes.verify_common_metadata_analysis_pass(bert_graph)
    passes.verify_common_metadata_analysis_pass(bert_graph, {"dummy_in": bert_inputs})
    longer = {**bert_inputs, "input_ids": torch.zeros(3, 12, dtype=torch.long)}
    longer["attention_mask"] = torch.ones(3, 12, dtype=torch.long)
    with pytest.raises(GraphError, match=r"node 'input_ids': .*shape \(3, 11\), and it is \(3, 12"):
        passes.verify_common_metadata_analysis_pass(bert_graph, {"dummy_in": longer})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda common: common.results["data_out_0"].update(shape=(3, 9)), r"shape \(3, 9\)"),
        (lambda common: common.args["weight"].update(torch_dtype=torch.int8), "weight.torch_dtype"),
        (lambda common: common.update(mase_type="builtin_func"), "mase_type 'builtin_func'"),
        (lambda common: common.args.pop("bias"), "has args"),
        (lambda common: common.args.update(data_in_1=TensorInfo((1,))), "'data_in_1'"),
        (
            lambda common: common.args["data_in_0"].update(precision=(8, 4)),
            r"precision \(8, 4\)",
        ),
    ],
)
def test_metadata_that_is_no_longer_true_is_an_error_with_the_node(net_graph, spoil, message):
    spoil(net_graph.node("fc1").meta["mase"].common)
    with pytest.raises(GraphError, match=f"node 'fc1': its metadata .*{message}.*run add_common"):
        passes.verify_common_metadata_analysis_pass(net_graph)


def test_an_edit_of_the_graph_is_noticed(net_graph):
    net_graph.node("relu").target = torch.nn.functional.silu
    with pytest.raises(GraphError, match="'relu': its metadata has mase_op 'relu', and it is"):
        passes.verify_common_metadata_analysis_pass(net_graph)
    passes.init_metadata_analysis_pass(net_graph)  # the next pass runs add_common again
    passes.verify_common_metadata_analysis_pass(net_graph)


def test_nodes_tell_what_they_call(net_graph):
    targets = {node.name: get_node_actual_target(node) for node in net_graph.nodes}
    assert targets["fc1"] is net_graph.modules["fc1"]
    assert targets["relu"] is torch.nn.functional.relu
    assert targets["mean"] is torch.Tensor.mean
    assert targets["x"] == "x" and targets["output"] == "output"
    assert get_mase_type(net_graph.node("bn")) == "module"
    twin = deepcopy_mase_graph(net_graph)
    assert get_node_actual_target(twin.node("fc1")) is twin.modules["fc1"]
    assert get_mase_op(twin.node("fc1")) == "linear"


def exported(mg, tmp_path):
    mg.export(tmp_path / "graph")
    return MaseGraph.from_checkpoint(tmp_path / "graph")


WAYS = {
    "as it is": lambda mg, tmp_path: mg,
    "copied": lambda mg, tmp_path: copy.deepcopy(mg),
    "pickled": lambda mg, tmp_path: pickle.loads(pickle.dumps(mg)),
    "exported": exported,
    "quantized": lambda mg, tmp_path: passes.quantize_transform_pass(mg, QUANTIZE)[0],
    "pruned": lambda mg, tmp_path: passes.prune_transform_pass(mg, PRUNE)[0],
    "fused": lambda mg, tmp_path: passes.conv_bn_fusion_transform_pass(mg)[0],
}
"""How a graph may have come about; the last three work on copies."""


@pytest.mark.parametrize("way", WAYS)
def test_metadata_knows_its_node_graph_model_and_module(net_graph, tmp_path, way):
    for mg in (WAYS[way](net_graph, tmp_path), net_graph):
        for node in mg.fx_graph.nodes:
            metadata = node.meta["mase"]
            assert metadata.node is node and metadata.graph is mg.fx_graph
            assert metadata.model is mg.model and metadata.module is mg.get_module(node)
            assert set(metadata) == {"common", "software", "hardware"}
    weights = {n.name for n in net_graph.nodes if hasattr(n.meta["mase"].module, "weight")}
    assert weights == {"conv", "bn", "fc1", "fc2"}


def test_metadata_that_users_make_knows_its_node(net_graph):
    node = net_graph.node("fc1")
    for metadata in (MaseMetadata(node, net_graph.model), MaseMetadata(node=node, model=None)):
        metadata.parameters["common"]["mase_op"] = "linear"
        assert metadata.module is net_graph.modules["fc1"] and metadata.common.mase_op == "linear"
    with pytest.raises(GraphError, match="to no node: make it with"):
        copy.copy(metadata).module  # noqa: B018
