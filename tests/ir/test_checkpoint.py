"""What goes into a checkpoint comes out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from chop.errors import CheckpointError, ConfigError, WriteError
from chop.formats import Integer, QuantSpec
from chop.ir.graph import MaseGraph
from chop.ir.metadata import MaseMetadata, TensorInfo
from chop.ir.storage.graph_codec import unfold_metadata
from chop.nn.quantized import QuantCall, QuantLinear, QuantScaledDotProductAttention
from tests.ir.checkpoint_cases import Net, X, assert_same, edit, net, reload, run


@pytest.mark.parametrize("save_format", ["full_model", "state_dict"])
def test_a_reloaded_graph_computes_the_same_bits_in_both_modes(
    tmp_path: Path, save_format: Any
) -> None:
    mg = net()
    run(mg, train=True)  # moves the running statistics
    mg.export(tmp_path / "graph", save_format)
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert_same(mg, again)
    assert again.model.rnn._flat_weights[0] is again.model.rnn.weight_ih_l0


def test_tied_tensors_are_stored_once_and_tied_again(tmp_path: Path) -> None:
    mg = net()
    again = reload(mg, tmp_path)
    assert again.model.decode.weight is again.model.encode.weight
    assert "decode.weight" not in load_file(tmp_path / "graph.pt")
    assert len(list(again.model.parameters())) == len(list(mg.model.parameters()))


def test_tensors_that_share_memory_share_it_again(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight.data = model[0].weight.data
    again = reload(MaseGraph(model), tmp_path)
    first, second = again.model.get_parameter("0.weight"), again.model.get_parameter("1.weight")
    assert first is not second
    assert first.data_ptr() == second.data_ptr()


def test_frozen_parameters_modes_and_persistence_survive(tmp_path: Path) -> None:
    mg = net()
    mg.model.encode.bias.requires_grad_(False)
    mg.model.train()
    mg.model.norm.eval()
    again = reload(mg, tmp_path)
    frozen = [name for name, p in again.model.named_parameters() if not p.requires_grad]
    assert frozen == ["encode.bias"]
    assert again.model.training and not again.model.norm.training
    assert "shift" not in again.model.state_dict() and "steps" in again.model.state_dict()
    assert torch.equal(again.model.shift, mg.model.shift)


def test_a_reloaded_graph_trains_and_is_exported_again(tmp_path: Path) -> None:
    again = reload(net(), tmp_path)
    before = again.model.encode.weight.detach().clone()
    optimizer = torch.optim.SGD(again.model.parameters(), lr=0.1)
    run(again, train=True).square().sum().backward()
    optimizer.step()
    assert not torch.equal(before, again.model.encode.weight)
    third = reload(again, tmp_path)
    assert_same(again, third)


@pytest.mark.parametrize("save_format", ["full_model", "state_dict"])
def test_quantized_modules_calls_and_attention_survive(tmp_path: Path, save_format: Any) -> None:
    mg = net()
    spec = QuantSpec(Integer(8, 4), Integer(6, 5), Integer(8, 4), Integer(10, 5), "clip")
    for node in mg.nodes:
        if node.target == "encode":
            mg.replace(node, QuantLinear.from_float(mg.get_module(node), spec))
        if node.target is F.gelu:
            mg.replace(node, QuantCall(F.gelu, {"input": "data_in"}, spec))
        if node.target is F.scaled_dot_product_attention:
            mg.replace(node, QuantScaledDotProductAttention(spec))
    mg.model.train(False)
    mg.export(tmp_path / "graph", save_format)
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert_same(mg, again)
    assert again.model.encode.spec == spec
    run(again, train=True).sum().backward()
    assert again.model.encode.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (3, 2), (0, 4)], ids=str)
@pytest.mark.sampled(3)
def test_every_dtype_and_shape_of_buffers_survives(
    tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    buffer = (torch.rand(shape) * 3).to(dtype)
    model.register_buffer("extra", buffer)
    again = reload(MaseGraph(model), tmp_path).model.extra
    assert again.dtype == dtype and again.shape == shape
    assert again.reshape(-1).view(torch.uint8).equal(buffer.reshape(-1).view(torch.uint8))


def test_the_order_of_memory_survives(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3)).to(memory_format=torch.channels_last)
    mg = MaseGraph(model, dummy_in={"input": torch.randn(2, 3, 8, 8)})
    weight = reload(mg, tmp_path).model.get_parameter("0.weight")
    assert weight.stride() == model[0].weight.stride() != weight.contiguous().stride()


def test_shared_modules_stay_shared(tmp_path: Path) -> None:
    layer = nn.Linear(4, 4)
    mg = MaseGraph(nn.Sequential(layer, nn.ReLU(), layer))
    again = reload(mg, tmp_path)
    assert again.model.get_submodule("0") is again.model.get_submodule("2")
    x = torch.randn(2, 4)
    assert torch.equal(mg.model(x), again.model(x))


def test_parametrized_modules_survive(tmp_path: Path) -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    mg = MaseGraph(model)
    again = reload(mg, tmp_path)
    x = torch.randn(2, 4)
    assert torch.equal(mg.model(x), again.model(x))
    again.model(x).sum().backward()
    assert set(again.model.state_dict()) == set(model.state_dict())


class Parametrized(nn.Module):
    """Also has a place for a module that is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.utils.parametrizations.weight_norm(nn.LSTM(3, 4), "weight_ih_l0")
        self.register_module("none", None)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


def test_parametrized_recurrent_modules_and_empty_places_survive(tmp_path: Path) -> None:
    mg = MaseGraph(Parametrized(), dummy_in={"x": X[0]})
    again = reload(mg, tmp_path)
    assert again.model._modules["none"] is None
    assert torch.equal(again.copy().model(X[0].T), mg.model(X[0].T))
    assert torch.equal(again.model(X[0].T), mg.model(X[0].T))
    for graph in (mg, again):
        with torch.no_grad():
            graph.model.rnn.parametrizations.weight_ih_l0.original0.mul_(2)
    assert torch.equal(again.model(X[0].T), mg.model(X[0].T))


def test_metadata_provenance_and_conditions_survive(tmp_path: Path) -> None:
    mg = net()
    for node in mg.nodes:
        node.meta["mase"] = MaseMetadata()
    first = mg.nodes[0].meta["mase"]
    first.common.results["data_out_0"] = TensorInfo.of(torch.ones(2, 3), keep_value=True)
    first["software"]["sparsity"] = 0.5
    first["software"]["not plain"] = object()
    first["software"]["function"] = open
    first["software"]["stat"] = {"mean": torch.tensor([0.1, -0.2]), "of": [mg.model.encode.weight]}
    first["software"]["meta"] = torch.empty(2, device="meta")
    again = reload(mg, tmp_path)
    read = again.nodes[0].meta["mase"]
    assert isinstance(read, MaseMetadata)
    assert read.common.results["data_out_0"].shape == (2, 3)
    assert read.common.results["data_out_0"].torch_dtype is torch.float32
    assert read.common.results["data_out_0"].value is None
    software = dict(read["software"])
    stat = software.pop("stat")
    assert software == {"sparsity": 0.5}
    assert torch.equal(stat["mean"], torch.tensor([0.1, -0.2]))
    assert stat["of"][0] is again.model.encode.weight
    assert again.provenance == mg.provenance
    assert again.model.guards == mg.model.guards and again.model.guards
    assert again.model.example_inputs == mg.model.example_inputs
    assert [n.meta.get("source") for n in again.nodes] == [n.meta.get("source") for n in mg.nodes]
    stacks = [list(n.meta.get("nn_module_stack", ())) for n in mg.nodes]
    assert [list(n.meta.get("nn_module_stack", ())) for n in again.nodes] == stacks


class Attribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attribute = nn.ParameterList([torch.ones(4), torch.full((4,), 2.0)])
        self.layer = nn.Linear(4, 4)
        self.layer.extra = torch.full((4,), 7.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.attribute[0] + self.attribute[1]


@pytest.mark.parametrize("save_format", ["full_model", "state_dict"])
def test_no_parameter_has_the_name_of_a_plain_tensor(tmp_path: Path, save_format: Any) -> None:
    mg = MaseGraph(Attribute())
    mg.export(tmp_path / "graph", save_format)
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    x = torch.linspace(-1, 1, 8).view(2, 4)
    assert torch.equal(again.model(x), mg.model(x))
    assert torch.equal(again.model.layer.extra, torch.full((4,), 7.0))


def test_nodes_put_in_after_the_metadata_are_described_on_load(tmp_path: Path) -> None:
    from chop.passes import add_common_metadata_analysis_pass, init_metadata_analysis_pass

    mg, _ = init_metadata_analysis_pass(net())
    mg, _ = add_common_metadata_analysis_pass(mg, {"dummy_in": {"x": X}})
    node = next(node for node in mg.nodes if node.target == "drop")
    with mg.fx_graph.inserting_after(node):
        new = mg.fx_graph.call_function(torch.relu, (node,))
    node.replace_all_uses_with(new, lambda user: user is not new)
    mg.export(tmp_path / "graph")
    found = MaseGraph.from_checkpoint(tmp_path / "graph").node(new.name).meta["mase"].common
    assert (found.mase_op, found.mase_type) == ("relu", "module_related_func")
    assert found.args["data_in_0"].shape == found.results["data_out_0"].shape == (5, 16, 8)
    bare = MaseGraph.from_checkpoint(tmp_path / "graph", propagate_missing_metadata=False)
    assert "mase" not in bare.node(new.name).meta
    assert "mase" not in reload(net(), tmp_path).nodes[0].meta


def common_of(mg: MaseGraph) -> dict[str, Any]:
    infos = {node.name: node.meta["mase"].common.results for node in mg.nodes}
    return {
        name: {key: (info.shape, info.torch_dtype) for key, info in results.items()}
        for name, results in infos.items()
        if len(results) == 1  # of several results, the first pass notes more than reading does
    }


@pytest.mark.filterwarnings("error")
def test_shapes_of_many_nodes_are_derived_on_load(tmp_path: Path) -> None:
    from chop.passes import add_common_metadata_analysis_pass

    mg, _ = add_common_metadata_analysis_pass(net(), {"dummy_in": {"x": X}})
    mg.export(tmp_path / "graph")

    def forget(document: dict[str, Any]) -> None:
        unfold_metadata(document)
        for entry in document["nodes"][1:-1]:
            del entry["meta"]["mase"]
        del document["metadata"]

    edit(tmp_path, forget)
    again = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert common_of(again) == common_of(mg)
    assert all(module.training == mg.model.training for module in again.model.modules())


def test_metadata_that_packs_too_well_to_be_unpacked_is_not_packed(tmp_path: Path) -> None:
    mg = net()
    for node in mg.nodes:
        node.meta["mase"] = MaseMetadata()
    mg.nodes[0].meta["mase"]["software"]["long"] = [0] * 600_000
    again = reload(mg, tmp_path)
    assert again.nodes[0].meta["mase"]["software"]["long"] == [0] * 600_000
    mg.nodes[0].meta["mase"]["software"]["long"] = [0] * 1000
    again = reload(mg, tmp_path)
    assert again.nodes[0].meta["mase"]["software"]["long"] == [0] * 1000
    assert (tmp_path / "graph.mz").stat().st_size < 20_000


def test_the_state_dict_alone_loads_into_the_original_model(tmp_path: Path) -> None:
    mg, model = net(), Net()
    mg.export(tmp_path / "graph", "state_dict")
    assert not model.load_state_dict(load_file(tmp_path / "graph.pt")).missing_keys
    assert torch.equal(model.decode.weight, mg.model.encode.weight)


def test_a_hugging_face_model_keeps_its_outputs_loss_and_configuration(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        vocab_size=50, id2label={0: "bad", 1: "good"},
    )  # fmt: skip
    names = ["input_ids", "attention_mask", "labels"]
    mg = MaseGraph(BertForSequenceClassification(config), hf_input_names=names)
    again = reload(mg, tmp_path)
    inputs = {
        "input_ids": torch.randint(0, 50, (2, 9)),
        "attention_mask": torch.ones(2, 9, dtype=torch.long),
        "labels": torch.tensor([0, 1]),
    }
    for train in (False, True):
        torch.manual_seed(0)
        ours = mg.model.train(train)(**inputs)
        torch.manual_seed(0)
        theirs = again.model.train(train)(**inputs, token_type_ids=0 * inputs["input_ids"])
        assert torch.equal(ours.logits, theirs.logits) and torch.equal(ours.loss, theirs.loss)
    assert type(theirs).__name__ == "SequenceClassifierOutput"
    assert again.model.config.to_dict() == config.to_dict()
    assert again.model.config.id2label == {0: "bad", 1: "good"}


# --- names of files ------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["ckpt", "a.b/c", "deep/er/ckpt.v1.2", "x.pt", "x.mz"])
def test_any_path_works_and_only_our_suffixes_are_cut(tmp_path: Path, name: str) -> None:
    mg = MaseGraph(nn.Sequential(nn.Linear(2, 2)))
    mg.export(str(tmp_path / name))
    stem = name.removesuffix(".pt").removesuffix(".mz")
    written = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file())
    assert written == [f"{stem}.mz", f"{stem}.pt"]
    assert len(MaseGraph.from_checkpoint(tmp_path / stem).nodes) == len(mg.nodes)
    assert len(MaseGraph.from_checkpoint(tmp_path / f"{stem}.mz").nodes) == len(mg.nodes)


def test_a_failing_export_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    mg = MaseGraph(nn.Sequential(nn.Linear(2, 2)))
    mg.export(tmp_path / "graph")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    mg.model.get_submodule("0").callback = lambda: None
    with pytest.raises(CheckpointError):
        mg.export(tmp_path / "graph")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_full_disk_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mg = MaseGraph(nn.Sequential(nn.Linear(2, 2)))
    mg.export(tmp_path / "graph")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*args: object, **kwargs: object) -> None:
        raise RuntimeError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(WriteError, match="graph' cannot be written: No space left on device"):
        mg.export(tmp_path / "graph")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("moved", [0, 1])
def test_an_export_that_is_killed_half_way_leaves_a_checkpoint_that_can_be_read(
    tmp_path: Path, moved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (MaseGraph(nn.Sequential(nn.Linear(2, 2))) for _ in range(2))
    old.export(tmp_path / "graph")
    moves = iter([True] * moved)

    def replace(self: Path, target: Path, original: Any = Path.replace) -> Path:
        if next(moves, False):
            return original(self, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", replace)
        new.export(tmp_path / "graph")
    read = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert torch.equal(read.modules["0"].weight, new.modules["0"].weight)
    old.export(tmp_path / "graph")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.mz", "graph.pt"]
    read = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert torch.equal(read.modules["0"].weight, old.modules["0"].weight)


def test_the_graph_file_is_readable(tmp_path: Path) -> None:
    net().export(tmp_path / "graph")
    lines = (tmp_path / "graph.mz").read_text().splitlines()
    (line,) = [line for line in lines if '"target": "encode"' in line]
    assert '"op": "call_module"' in line and len(lines) > 30


# --- what cannot be exported ---------------------------------------------------------------------


class Holder(nn.Module):
    """Holds whatever it is given."""

    def __init__(self, thing: Any) -> None:
        super().__init__()
        self.thing = thing

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def held(thing: Any) -> MaseGraph:
    return MaseGraph(nn.Sequential(Holder(thing)), custom_ops=[Holder], dummy_in={"input": X})


def test_functions_that_modules_hold_are_checked_on_load(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'builtins:open', which is not allowed"):
        reload(held(open), tmp_path, allow=[Holder])


@pytest.mark.parametrize("thing", [lambda: None, object(), [object()], nn.Linear(1, 1).forward])
def test_what_has_no_plain_form_is_refused_by_name(tmp_path: Path, thing: Any) -> None:
    with pytest.raises(CheckpointError, match="'0' \\(Holder\\).*attribute 'thing'"):
        held(thing).export(tmp_path / "graph")
    assert list(tmp_path.iterdir()) == []


def test_own_classes_load_when_they_are_allowed(tmp_path: Path) -> None:
    settings = {"a": (1, 2.5, None), "t": torch.arange(3), "s": torch.Size([2]), "f": F.relu}
    mg = held(settings)
    with pytest.raises(CheckpointError, match=r"test_checkpoint:Holder'.*allow=\[Holder\]"):
        reload(mg, tmp_path)
    thing = reload(mg, tmp_path, allow=[Holder]).model.get_submodule("0").thing
    assert torch.equal(thing.pop("t"), settings.pop("t"))
    assert thing == settings


def test_hooks_stay_behind_with_one_warning(tmp_path: Path) -> None:
    mg = net()
    mg.model.conv.register_forward_hook(lambda *_: None)
    mg.model.encode.register_forward_pre_hook(lambda *_: None)
    with pytest.warns(UserWarning, match="hooks are code.*conv, encode"):
        again = reload(mg, tmp_path)
    assert_same(mg, again)


def test_functions_without_a_name_and_meta_tensors_are_refused(tmp_path: Path) -> None:
    mg = net()
    node = next(node for node in mg.nodes if node.target is F.gelu)
    node.target = lambda x: x
    with pytest.raises(CheckpointError, match="lambda"):
        mg.export(tmp_path / "graph")
    with pytest.raises(CheckpointError, match="meta"):
        empty = MaseGraph(nn.Sequential(nn.Linear(2, 2)))
        empty.model.to("meta")
        empty.export(tmp_path / "graph")
    with pytest.raises(ConfigError, match="did you mean 'state_dict'"):
        net().export(tmp_path / "graph", "state_dic")  # type: ignore[arg-type]
