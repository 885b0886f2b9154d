"""Metadata in a file, and the passes that check or add some by MASE's names."""

import json

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import CheckpointError, ConfigError, GraphError
from chop.formats import Integer, QuantSpec
from chop.passes.graph.utils import (
    fetch_attr,
    get_input_index,
    get_module_by_name,
    get_module_by_target,
    get_node_by_name,
    load_arg,
)
from tests.passes.conftest import with_metadata

X = torch.randn(3, 4)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.act = nn.Linear(4, 6), nn.Linear(4, 6), nn.ReLU()
        self.shift = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return torch.sub(self.act(self.a(x)), self.b(x)) * self.shift


def graph():
    torch.manual_seed(0)
    return MaseGraph(Small(), dummy_in={"x": X})


@pytest.fixture
def mg():
    return with_metadata(graph())


def test_metadata_survives_a_file(mg, tmp_path):
    mg, _ = passes.add_software_metadata_analysis_pass(mg)
    small, _ = passes.quantize_transform_pass(
        mg, {"by": "type", "linear": {"config": {"name": "integer", "width": 8, "frac_width": 4}}}
    )
    noted = get_node_by_name(small, "a").meta["mase"]
    noted.software["mine"] = {"spec": QuantSpec(Integer(8, 4)), "pair": (1, 2.5)}
    same, info = passes.save_node_meta_param_interface_pass(small, tmp_path / "meta.toml")
    assert same is small and info == {"nodes": len(small.nodes), "path": tmp_path / "meta.toml"}
    fresh, info = passes.load_node_meta_param_interface_pass(graph(), tmp_path / "meta.toml")
    assert info["nodes"] == len(small.nodes)
    for node, other in zip(small.nodes, fresh.nodes, strict=True):
        before, after = node.meta["mase"], other.meta["mase"]
        for name, tensor in before.common.results.items():
            assert dict(after.common.results[name]) == dict(tensor)
        assert (before.common.mase_op, before.common.mase_type) == (
            after.common.mase_op,
            after.common.mase_type,
        )
    read = get_node_by_name(fresh, "a").meta["mase"]
    assert read["common"]["args"]["weight"]["precision"] == (8, 4)
    assert dict(read.software["mine"]) == {"spec": QuantSpec(Integer(8, 4)), "pair": (1, 2.5)}
    # What has been read need not be made again.
    done = [step.name for step in fresh.provenance]
    assert "add_common_metadata_analysis_pass" in done and len(done) == len(set(done))


def test_a_file_is_of_its_graph_and_runs_nothing(mg, tmp_path):
    path = tmp_path / "meta.json"
    passes.save_node_meta_param_interface_pass(mg, {"path": path})
    other = MaseGraph(nn.Sequential(nn.Linear(4, 2)))
    with pytest.raises(GraphError, match="belongs to another graph: no node 'x'|no node 'a'"):
        passes.load_node_meta_param_interface_pass(other, path)
    document = json.loads(path.read_text())
    document["nodes"]["a"] = {"$function": "os:system"}
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="os:system|not allowed"):
        passes.load_node_meta_param_interface_pass(mg, path)
    for text, message in {
        "{": "is not a metadata file of chop",
        "[]": "is not a metadata file of chop: expected an object, got an array",
        "{}": "is not a metadata file of chop, version 1; write it with save_node",
        '{"format": "chop metadata", "version": 1}': "is malformed: expected nodes",
    }.items():
        path.write_text(text)
        with pytest.raises(CheckpointError, match=message):
            passes.load_node_meta_param_interface_pass(mg, path)
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        passes.load_node_meta_param_interface_pass(mg, tmp_path / "none")
    with pytest.raises(GraphError, match="run init_metadata_analysis_pass"):
        passes.save_node_meta_param_interface_pass(graph(), path)
    with pytest.raises(ConfigError, match="unknown key 'file'"):
        passes.save_node_meta_param_interface_pass(mg, {"file": path})


def test_all_the_metadata_is_verified(mg):
    assert passes.verify_metadata_analysis_pass(mg, {"dummy_in": {"x": X}})[1] == {
        "checked": len(mg.nodes),
        "kinds": ["common"],
    }
    passes.add_software_metadata_analysis_pass(mg)
    passes.add_hardware_metadata_analysis_pass(mg)
    assert passes.verify_metadata_analysis_pass(mg)[1]["kinds"] == [
        "common",
        "software",
        "hardware",
    ]
    noted = get_node_by_name(mg, "b").meta["mase"]
    del noted.software["args"]["weight"]
    with pytest.raises(GraphError, match="node 'b': its software metadata lacks args.weight"):
        passes.verify_metadata_analysis_pass(mg)
    passes.add_software_metadata_analysis_pass(mg)
    del noted.hardware["is_implicit"]
    with pytest.raises(GraphError, match="node 'b': its hardware metadata lacks is_implicit"):
        passes.verify_hardware_metadata_analysis_pass(mg)
    noted.common.results["data_out_0"].shape = (1,)
    with pytest.raises(GraphError, match="node 'b': its metadata has results.data_out_0.shape"):
        passes.verify_metadata_analysis_pass(mg)


def test_natural_sparsity_is_the_share_of_zeros(mg):
    with torch.no_grad():
        mg.model.a.weight[:3] = 0
    x = X.clone()
    x[0] = 0
    config = {"dummy_in": {"x": x}, "add_meta": True}
    _, info = passes.add_natural_sparsity_metadata_analysis_pass(mg, config)
    assert info["a_weight"] == (24, 0.5) and info["b_weight"] == (24, 0.0)
    assert info["avg_weight"] == 0.25
    assert info["a_activation"] == (12, pytest.approx(1 / 3)) == info["b_activation"]
    assert info["avg_activation"] == pytest.approx(1 / 3)
    args = get_node_by_name(mg, "a").meta["mase"]["software"]["args"]
    assert args["weight"]["natural_sparsity"] == 0.5
    assert args["data_in_0"]["natural_sparsity"] == pytest.approx(1 / 3)
    with pytest.raises(ConfigError, match="missing key 'dummy_in'"):
        passes.add_natural_sparsity_metadata_analysis_pass(mg, {})


def test_graphs_are_at_the_level_of_modules(mg):
    raised, info = passes.raise_granularity_transform_pass(mg)
    assert info == {"raised": 0, "modules": 3} and raised is not mg
    assert torch.equal(raised.model(X), mg.model(X))


def test_questions_about_nodes_and_modules(mg):
    a, b = get_node_by_name(mg, "a"), get_node_by_name(mg.fx_graph, "b")
    sub = get_node_by_name(mg, "sub")
    act = get_node_by_name(mg, "act")
    assert get_input_index(act, sub) == 0 and get_input_index(b, sub) == 1
    assert get_input_index(a, sub) is None and get_input_index(a, act) == 0
    with pytest.raises(GraphError, match="no node 'aa': did you mean 'a'"):
        get_node_by_name(mg, "aa")
    assert get_module_by_name(mg.model, "a") is mg.modules["a"]
    assert get_module_by_name(mg.model, "nothing") is None
    assert get_module_by_target(mg.model, "a.weight") is mg.model.a.weight
    assert fetch_attr(mg.model, "shift") is mg.model.shift
    with pytest.raises(GraphError, match="'a.nothing': 'a' has no 'nothing'"):
        get_module_by_target(mg.model, "a.nothing")
    values = {"act": torch.ones(2), "b": torch.zeros(2)}
    assert load_arg(sub.args, values) == (values["act"], values["b"])
