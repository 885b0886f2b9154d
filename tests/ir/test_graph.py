import copy
import pickle

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError, GraphError
from chop.ir.metadata import MaseMetadata, TensorInfo
from chop.ir.ops import OPS, get_class_row, get_function_row
from chop.ir.verify import verify


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(4, 2)

    def forward(self, x):
        return self.second(self.drop(torch.relu(self.first(x))))


@pytest.fixture
def mg():
    torch.manual_seed(0)
    return MaseGraph(Net().eval(), dummy_in={"x": torch.randn(3, 4)})


def test_the_graph_and_the_model_are_one(mg):
    assert [n.op for n in mg.nodes] == [
        "placeholder",
        *["call_module"],
        "call_function",
        *["call_module"] * 2,
        "output",
    ]
    assert mg.modules["first"] is mg.model.first
    assert mg.get_module(mg.node("second")) is mg.model.second
    assert mg.get_module(mg.node("relu")) is None
    assert mg.operator(mg.node("relu")).name == "relu"
    assert "Net, 6 nodes" in repr(mg)


def test_edits_take_effect_without_recompiling_by_hand(mg):
    x = torch.randn(5, 4)
    mg.model.train()
    relu, first, second = torch.relu, mg.model.first, mg.model.second
    mg.erase(mg.node("drop"))
    assert torch.equal(mg.model(x), second(relu(first(x))))
    mg.node("relu").target = torch.tanh
    assert torch.equal(mg.model(x), second(torch.tanh(first(x))))


def test_replacing_a_function_puts_a_module_beside_its_caller(mg):
    mg.replace(mg.node("relu"), nn.Tanh())
    x = torch.randn(5, 4)
    assert torch.equal(mg.model(x), mg.model.second(torch.tanh(mg.model.first(x))))
    assert mg.node("relu").op == "call_module"
    assert isinstance(mg.modules["relu"], nn.Tanh)
    assert not mg.modules["relu"].training
    verify(mg)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.block = nn.Sequential(self.first, nn.Tanh())

    def forward(self, x):
        return self.block(self.first(x))


def test_a_module_at_two_paths_is_replaced_at_both():
    mg = MaseGraph(Shared().eval())
    other = nn.Linear(4, 4)
    mg.replace(mg.nodes[1], other)
    assert mg.model.first is other is mg.model.block.get_submodule("0")
    assert not other.training
    original, x = Shared(), torch.randn(3, 4)
    original.load_state_dict(mg.model.state_dict())
    assert torch.equal(mg.model(x), original(x))
    with pytest.raises(GraphError, match="expected an nn.Module, got str"):
        mg.replace(mg.nodes[1], "Linear")


def test_copies_are_independent(mg):
    mg.node("first").meta["mase"] = MaseMetadata()
    for twin in (mg.copy(), copy.deepcopy(mg)):
        twin.node("first").meta["mase"].software["seen"] = True
        assert "seen" not in mg.node("first").meta["mase"].software
        with torch.no_grad():
            twin.model.first.weight.zero_()
        twin.erase(twin.node("drop"))
        assert mg.model.first.weight.abs().sum() > 0
        assert len(mg.nodes) == len(twin.nodes) + 1


def test_pickle_keeps_graph_and_outputs(mg):
    x = torch.randn(5, 4)
    noted(mg, "first").software["seen"] = True
    twin = pickle.loads(pickle.dumps(mg))
    assert twin.node("first").meta["mase"].software["seen"]
    assert "mase" not in twin.node("relu").meta
    assert torch.equal(twin.model(x), mg.model(x))
    assert twin.diff(mg) == []


def test_diff_says_what_changed(mg):
    other = mg.copy()
    other.erase(other.node("drop"))
    other.replace(other.node("relu"), nn.ReLU())
    assert mg.diff(mg.copy()) == []
    assert mg.diff(other) == [
        "- drop: call_module Dropout(p=0.5, inplace=False)",
        "~ relu: call_function relu -> call_module ReLU()",
    ]


def test_mase_spellings(mg):
    assert MaseGraph.from_module(mg.model).fx_graph is mg.fx_graph
    mg.model = mg.model.cpu()
    mg.fx_graph = mg.fx_graph
    assert mg.model(torch.randn(2, 4)).shape == (2, 2)


def test_wrong_use_is_one_clear_error(mg):
    with pytest.raises(ConfigError, match="expected an nn.Module, got str; load a checkpoint"):
        MaseGraph("checkpoint")
    with pytest.raises(GraphError, match="did you mean 'first'"):
        mg.node("frist")
    with pytest.raises(GraphError, match="expected a captured model"):
        mg.model = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="did you mean 'modules'"):
        MaseGraph(Net(), custom_ops={"module": {}})
    with pytest.raises(GraphError, match="no input to put in its place"):
        mg.erase(mg.node("x"))


def test_user_leaves_are_kept_whole():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x).tanh()

    model = nn.Sequential(Block(), nn.Linear(4, 2))
    inputs = {"input": torch.randn(3, 4)}
    for ops in ([Block], ["0"], {"modules": {Block: {}}}):
        mg = MaseGraph(model, custom_ops=ops, dummy_in=inputs)
        assert [n.target for n in mg.nodes if n.op == "call_module"] == ["0", "1"]
        assert torch.equal(mg.model(inputs["input"]), model(inputs["input"]))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda mg: delattr(mg.model, "first"), "well formed.*first"),
        (lambda mg: mg.node("first").meta.update(mase={}), "metadata is a dict"),
        (
            lambda mg: setattr(noted(mg, "first").common, "mase_op", "conv2d"),
            "recorded as 'conv2d'",
        ),
        (lambda mg: noted(mg, "first").common.results.update(data_out_0=3), "is not a TensorInfo"),
        (lambda mg: mg.fx_graph.output(mg.node("x")), "not well formed|one output"),
    ],
)
def test_verify_finds_what_is_wrong(mg, spoil, message):
    verify(mg)
    spoil(mg)
    with pytest.raises(GraphError, match=message):
        verify(mg)


def noted(mg, name):
    metadata = MaseMetadata()
    metadata.common.mase_op = mg.operator(mg.node(name)).name
    mg.node(name).meta["mase"] = metadata
    return metadata


def test_metadata_reads_as_attributes_and_as_nested_dicts():
    metadata = MaseMetadata()
    metadata.common.args["data_in_0"] = TensorInfo((2, 3), torch.float32)
    view = metadata["common"]["args"]["data_in_0"]
    assert view["shape"] == (2, 3)
    view["shape"] = (4,)
    view["my_pass"] = "noted"
    assert metadata.common.args["data_in_0"].shape == (4,)
    assert metadata.parameters["common"]["args"]["data_in_0"]["my_pass"] == "noted"
    assert set(metadata) == {"common", "software", "hardware"}
    del view["my_pass"]
    with pytest.raises(KeyError, match="'shpae'; there are shape"):
        view["shpae"]


def test_the_operator_table_is_consistent():
    modules = [cls for row in OPS.values() for cls in row.modules]
    functions = [f for row in OPS.values() for f in row.functions]
    methods = [name for row in OPS.values() for name in row.methods]
    for found in (modules, functions, methods):
        assert len(found) == len(set(found))
    for row in OPS.values():
        assert row.mase_type in ("module_related_func", "module", "builtin_func")
        assert row.quantized is None or issubclass(row.quantized, row.modules)
        assert all(hasattr(torch.Tensor, name) for name in row.methods)


def test_unknown_operators_get_a_generic_row():
    class MyNorm(nn.LayerNorm):
        pass

    class Strange(nn.Module):
        pass

    assert get_class_row(MyNorm).name == "layer_norm"
    assert (get_class_row(Strange).name, get_class_row(Strange).mase_type) == ("strange", "module")
    assert (get_function_row(torch.fft.fft).name, get_function_row(len).mase_type) == (
        "fft_fft",
        "builtin_func",
    )
    assert get_function_row(test_pickle_keeps_graph_and_outputs).mase_type == "patched_func"
    assert not get_class_row(Strange).is_quantizable


def test_metadata_of_a_copied_model_is_of_the_copy(mg):
    mg, _ = passes.init_metadata_analysis_pass(mg)
    for twin in (copy.deepcopy(mg.model), mg.copy().model):
        for node, original in zip(twin.graph.nodes, mg.nodes, strict=True):
            metadata = node.meta["mase"]
            assert metadata is not original.meta["mase"]
            assert (metadata.node, metadata.model) == (node, twin)
            metadata.software["noted"] = 1
            assert "noted" not in original.meta["mase"].software


def test_a_call_of_a_graph_names_its_model(mg):
    with pytest.raises(GraphError, match=r"call its model, mg\.model\(x\)"):
        mg(torch.randn(3, 4))
