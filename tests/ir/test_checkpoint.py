"""What goes into a checkpoint comes out of it, and nothing in a file is ever run."""

from __future__ import annotations

import json
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from chop.errors import CheckpointError
from chop.formats import Integer, QuantSpec
from chop.ir.graph import MaseGraph
from chop.ir.metadata import MaseMetadata, TensorInfo
from chop.nn.quantized import QuantCall, QuantLinear, QuantScaledDotProductAttention


class Net(nn.Module):
    """A little of everything: convolution, batch norm, recurrence, attention, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 3, padding=1, padding_mode="circular")
        self.norm = nn.BatchNorm1d(8)
        self.rnn = nn.LSTM(8, 8, num_layers=2, batch_first=True, dropout=0.5)
        self.encode = nn.Linear(8, 8)
        self.decode = nn.Linear(8, 8)
        self.decode.weight = self.encode.weight
        self.drop = nn.Dropout(0.5)
        self.register_buffer("shift", torch.randn(8), persistent=False)
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).transpose(1, 2)
        x, _ = self.rnn(x)
        x = F.gelu(self.encode(x) + self.shift) / self.steps
        x = F.scaled_dot_product_attention(x, x, x, dropout_p=0.1 if self.training else 0.0)
        return self.decode(self.drop(x))


@cache
def captured() -> MaseGraph:
    torch.manual_seed(0)
    return MaseGraph(Net(), dummy_in={"x": torch.randn(2, 3, 16)})


def net() -> MaseGraph:
    return captured().copy()


X = torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(1))


def run(mg: MaseGraph, x: Tensor = X, train: bool = False) -> Tensor:
    torch.manual_seed(7)
    return mg.model.train(train)(x)


def assert_same(mg: MaseGraph, other: MaseGraph, x: Tensor = X) -> None:
    assert torch.equal(run(mg, x), run(other, x))
    assert torch.equal(run(mg, x, train=True), run(other, x, train=True))
    assert mg.diff(other) == []
    assert list(mg.model.state_dict()) == list(other.model.state_dict())


def reload(mg: MaseGraph, folder: Path, **kwargs: Any) -> MaseGraph:
    mg.export(folder / "graph")
    return MaseGraph.from_checkpoint(folder / "graph", **kwargs)


def edit(folder: Path, change: Any, name: str = "graph.mz") -> None:
    path = folder / name
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


# --- round trips -------------------------------------------------------------------------------


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
def test_quantised_modules_calls_and_attention_survive(tmp_path: Path, save_format: Any) -> None:
    mg = net()
    spec = QuantSpec(Integer(8, 4), Integer(6, 5), Integer(8, 4), Integer(10, 5), "clip")
    for node in mg.nodes:
        if node.target == "encode":
            mg.replace(node, QuantLinear.from_float(mg.module_of(node), spec))
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


def test_parametrised_modules_survive(tmp_path: Path) -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    mg = MaseGraph(model)
    again = reload(mg, tmp_path)
    x = torch.randn(2, 4)
    assert torch.equal(mg.model(x), again.model(x))
    again.model(x).sum().backward()
    assert set(again.model.state_dict()) == set(model.state_dict())


def test_metadata_provenance_and_conditions_survive(tmp_path: Path) -> None:
    mg = net()
    for node in mg.nodes:
        node.meta["mase"] = MaseMetadata()
    first = mg.nodes[0].meta["mase"]
    first.common.results["data_out_0"] = TensorInfo.of(torch.ones(2, 3), keep_value=True)
    first["software"]["sparsity"] = 0.5
    first["software"]["not plain"] = object()
    first["software"]["function"] = open
    again = reload(mg, tmp_path)
    read = again.nodes[0].meta["mase"]
    assert isinstance(read, MaseMetadata)
    assert read.common.results["data_out_0"].shape == (2, 3)
    assert read.common.results["data_out_0"].torch_dtype is torch.float32
    assert read.common.results["data_out_0"].value is None
    assert dict(read["software"]) == {"sparsity": 0.5}
    assert again.provenance == mg.provenance
    assert again.model.guards == mg.model.guards and again.model.guards
    assert again.model.example_inputs == mg.model.example_inputs
    assert [n.meta.get("source") for n in again.nodes] == [n.meta.get("source") for n in mg.nodes]
    stacks = [list(n.meta.get("nn_module_stack", ())) for n in mg.nodes]
    assert [list(n.meta.get("nn_module_stack", ())) for n in again.nodes] == stacks


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
    assert found.args["data_in_0"].shape == found.results["data_out_0"].shape == (2, 16, 8)
    bare = MaseGraph.from_checkpoint(tmp_path / "graph", propagate_missing_metadata=False)
    assert "mase" not in bare.node(new.name).meta
    assert "mase" not in reload(net(), tmp_path).nodes[0].meta


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
        theirs = again.model.train(train)(**inputs, token_type_ids=inputs["input_ids"])
        assert torch.equal(ours.logits, theirs.logits) and torch.equal(ours.loss, theirs.loss)
    assert type(theirs).__name__ == "SequenceClassifierOutput"
    assert again.model.config.to_dict() == config.to_dict()
    assert again.model.config.id2label == {0: "bad", 1: "good"}


# --- names of files ------------------------------------------------------------------------------


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
    with pytest.raises(CheckpointError, match="did you mean 'state_dict'"):
        net().export(tmp_path / "graph", "state_dic")  # type: ignore[arg-type]


# --- files that are missing, broken or foreign --------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> Path:
    net().export(tmp_path / "graph")
    return tmp_path


def refused(folder: Path, match: str) -> None:
    with pytest.raises(CheckpointError, match=match):
        MaseGraph.from_checkpoint(folder / "graph")


def test_a_missing_checkpoint_names_the_nearest(written: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint.*did you mean 'graph'"):
        MaseGraph.from_checkpoint(written / "grpah")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        MaseGraph.from_checkpoint(written / "no" / "folder")


@pytest.mark.parametrize("suffix", [".pt", ".mz"])
def test_half_a_checkpoint_is_refused(written: Path, suffix: str) -> None:
    (written / f"graph{suffix}").unlink()
    refused(written, f"graph\\{suffix}' is missing")


@pytest.mark.parametrize("keep", [0, 1, 50, 0.5, -1])
@pytest.mark.parametrize("suffix", [".pt", ".mz"])
def test_truncated_files_are_refused(written: Path, suffix: str, keep: float) -> None:
    path = written / f"graph{suffix}"
    data = path.read_bytes()
    size = int(len(data) * keep) if isinstance(keep, float) else keep
    path.write_bytes(data.rstrip()[:size])
    refused(written, "cut off or corrupt")


def test_a_flipped_bit_and_a_foreign_tensor_file_are_refused(written: Path) -> None:
    path = written / "graph.pt"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    refused(written, "contents differ")
    MaseGraph(nn.Sequential(nn.Linear(2, 2))).export(written / "other")
    path.write_bytes((written / "other.pt").read_bytes())
    refused(written, "does not belong to")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "corrupt"),
        ("[" * 100_000, "corrupt"),
        ("[]", "no chop checkpoint"),
        ('{"format": "other"}', "no chop checkpoint"),
        ("\udcff", "corrupt"),
    ],
)
def test_corrupt_and_foreign_text_is_refused(written: Path, text: str, match: str) -> None:
    (written / "graph.mz").write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(written, match)


def test_a_file_from_the_future_is_refused(written: Path) -> None:
    edit(written, lambda document: document.update(version=99))
    refused(written, "version 99.*Upgrade")


@pytest.mark.parametrize("key", ["nodes", "modules", "tensors", "attributes", "tensor_file"])
def test_a_file_that_lacks_a_part_is_refused(written: Path, key: str) -> None:
    edit(written, lambda document: document.pop(key))
    refused(written, "malformed")


def test_a_table_that_disagrees_with_the_tensors_is_refused(written: Path) -> None:
    edit(written, lambda document: document["tensors"]["encode.bias"].update(shape=[9]))
    refused(written, "'encode.bias': expected .*9.*the file has")
    edit(written, lambda document: document["tensors"].update({"no": {"dtype": "x", "shape": []}}))
    refused(written, "encode.bias|no")


# --- files that want to run something ------------------------------------------------------------


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("suffix", [".pt", ".mz"])
@pytest.mark.parametrize("zipped", [True, False])
def test_pickles_are_never_loaded(written: Path, suffix: str, zipped: bool) -> None:
    bomb, mark = written / f"graph{suffix}", written / "mark"
    if zipped:
        torch.save({"model": Bomb(mark)}, bomb)
    else:
        bomb.write_bytes(pickle.dumps(Bomb(mark)))
    refused(written, "pickle" if suffix == ".mz" else "does not belong")
    assert not mark.exists()


FUNCTIONS = [
    "torch:load", "torch:save", "torch:compile", "torch:from_file", "torch.hub:load", "os:system",
    "builtins:eval", "builtins:exec", "builtins:open", "builtins:__import__", "operator:call",
    "operator:attrgetter", "operator:methodcaller", "subprocess:run", "torch:hub.load",
    "torch.nn.functional:importlib.import_module", "torch.nn.functional:handle_torch_function",
    "torch.ops:aten.from_file.default", "torch.ops:profiler._record_function_enter.default",
    "chop.ir.storage.checkpoint:export", "chop.nn.quantized.ops:F.linear",
    "pickle:loads", "numpy:load",
    "transformers.models.bert.modeling_bert:torch.load", "transformers.utils:cached_file",
    "torch.utils.cpp_extension:load", "__main__:x", "", ":", "torch", "torch:_C", "torch:Tensor",
]  # fmt: skip


@pytest.mark.parametrize("reference", FUNCTIONS)
def test_functions_off_the_list_are_refused_by_name(written: Path, reference: str) -> None:
    def change(document: Any) -> None:
        node = next(node for node in document["nodes"] if node["op"] == "call_function")
        node["target"] = reference
        node["args"] = [str(written / "mark")]
        node.pop("kwargs", None)

    edit(written, change)
    refused(written, f"calls '{reference}'")
    assert not (written / "mark").exists()


@pytest.mark.parametrize("reference", ["os:system", "builtins:getattr", "builtins:max"])
def test_functions_in_attributes_are_checked_too(written: Path, reference: str) -> None:
    def change(document: Any) -> None:
        document["modules"][1]["attributes"]["act"] = {"$function": reference}

    edit(written, change)
    refused(written, f"'{reference}'")


@pytest.mark.parametrize(
    "reference",
    [
        "builtins:object", "torch.fx.graph_module:GraphModule", "torch.jit:ScriptModule",
        "subprocess:Popen", "torch.nn.modules.linear:math.floor", "chop.nn.quantized.ops:nn.Linear",
        "chop.ir.capture.captured:CapturedModule", "antigravity:x", "torch.nn.modules.linear",
    ],
)  # fmt: skip
def test_classes_off_the_list_are_refused_by_name(written: Path, reference: str) -> None:
    edit(written, lambda document: document["modules"][1].update({"class": reference}))
    refused(written, f"class '{reference}'")


INJECTION = 'x"); __import__("pathlib").Path("MARK").touch(); ("'


@pytest.mark.parametrize(
    "change",
    [
        {"op": "placeholder", "target": "x=__import__('pathlib').Path('MARK').touch()"},
        {"op": "placeholder", "target": "x\n import os"},
        {"op": "call_method", "target": INJECTION},
        {"op": "call_method", "target": "__class__"},
        {"op": "call_method", "target": "map_"},
        {"op": "call_method", "target": "register_hook"},
        {"op": "call_module", "target": INJECTION},
        {"op": "call_module", "target": "to_folder"},
        {"op": "call_module", "target": ""},
        {"op": "get_attr", "target": INJECTION},
        {"op": "get_attr", "target": "to_folder"},
        {"op": "get_attr", "target": "__class__"},
        {"op": "get_attr", "target": "graph"},
        {"op": "call_function", "target": "builtins:getattr", "args": [1, "__class__"]},
        {"op": "call_function", "target": "builtins:getattr", "args": [1, INJECTION]},
        {"op": "call_function", "target": "builtins:getattr", "args": [1, "load_state_dict"]},
        {"op": "call_function", "target": "builtins:getattr", "args": [1, {"$node": "x"}]},
        {"op": "call_function", "target": "builtins:getattr", "args": [1, "from_pretrained"]},
        {"op": "call_function", "target": "builtins:max", "args": [1, 2], "kwargs": {"key": 1}},
        {"op": "call_method", "target": "sort", "args": [[1, 2]], "kwargs": {"key": 1}},
        {
            "op": "call_function",
            "target": "torch.nn.functional:triplet_margin_with_distance_loss",
            "args": ["MARK", "x", 1, {"$function": "torch:add"}],
        },
        {"args": [{"$function": "builtins:getattr"}]},
        {"op": "get_attr", "target": "rnn.mode"},
        {"kwargs": {"a=__import__('os'), b": 1}},
        {"name": "x; import os"},
        {"op": "call_everything"},
        {"args": [{"$node": "nobody"}]},
        {"args": [{"$eval": "1+1"}]},
        {"args": [{"$dtype": "load"}]},
        {"args": [{"$function": "torch:load"}]},
    ],
    ids=lambda change: str(change)[:60],
)
def test_names_that_could_become_code_are_refused(
    written: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    from transformers import PretrainedConfig  # noqa: F401 (its methods count once it is there)

    monkeypatch.chdir(written)
    edit(written, lambda document: document["nodes"][3].update(change))
    with pytest.raises(CheckpointError):
        MaseGraph.from_checkpoint("graph")
    assert not (written / "MARK").exists()


@pytest.mark.parametrize(
    "expression", ["__import__('pathlib').Path('MARK').touch()", "x.__class__ == 1", "(", "[]"]
)
def test_conditions_are_arithmetic_and_nothing_else(
    written: Path, monkeypatch: pytest.MonkeyPatch, expression: str
) -> None:
    monkeypatch.chdir(written)
    guard = {"$shapeguard": {"expression": expression, "where": ""}}
    edit(written, lambda document: document["attributes"].update(guards=[guard]))
    with pytest.raises(CheckpointError):
        MaseGraph.from_checkpoint("graph").model(X)
    assert not (written / "MARK").exists()


@pytest.mark.parametrize("name", ["_forward_hooks", "__class__", "a b", "_modules"])
def test_modules_cannot_be_given_bookkeeping(written: Path, name: str) -> None:
    edit(written, lambda document: document["modules"][1]["attributes"].update({name: []}))
    refused(written, "odd attribute")


def test_module_paths_that_could_become_code_are_refused(written: Path) -> None:
    edit(written, lambda document: document["modules"][1].update(path=INJECTION))
    refused(written, "odd path|not there")


# --- code of the user's own ----------------------------------------------------------------------


class Double(torch.autograd.Function):
    """Doubles, with a gradient that only this class knows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 7


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Double.apply(x)


def test_autograd_functions_load_when_they_are_allowed(tmp_path: Path) -> None:
    mg = MaseGraph(Doubled(), dummy_in={"x": torch.randn(2, 3)})
    with pytest.raises(CheckpointError, match=r"Double\.apply'.*allow=\[Double\]"):
        reload(mg, tmp_path)
    again = reload(mg, tmp_path, allow=[Double])
    x = torch.ones(2, 3, requires_grad=True)
    again.model(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2, 3), 7.0))


def helper(x: Tensor) -> Tensor:
    return x - 1


def test_own_functions_load_when_they_are_allowed(tmp_path: Path) -> None:
    mg = net()
    node = next(node for node in mg.nodes if node.target is F.gelu)
    node.target, node.kwargs = helper, {}
    with pytest.raises(CheckpointError, match=r"helper'.*allow=\[helper\]"):
        reload(mg, tmp_path)
    assert_same(mg, reload(mg, tmp_path, allow=[helper]))
