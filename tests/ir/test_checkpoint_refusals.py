"""Files that are missing, broken, foreign or malicious are refused, and nothing in them is run."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.errors import CheckpointError
from chop.ir.graph import MaseGraph
from chop.ir.storage.checkpoint import find_checkpoint
from chop.ir.storage.document import read_document
from tests.ir.checkpoint_cases import X, assert_same, edit, net, reload
from tests.subcases import subcases


@pytest.fixture
def written(tmp_path: Path) -> Path:
    net().export(tmp_path / "graph")
    return tmp_path


def refused(folder: Path, match: str) -> None:
    with pytest.raises(CheckpointError, match=match):
        MaseGraph.from_checkpoint(folder / "graph")


def test_a_missing_checkpoint_names_the_nearest(written: Path) -> None:
    with pytest.raises(CheckpointError, match=f"did you mean '{written}/graph'"):
        MaseGraph.from_checkpoint(written / "grpah")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        MaseGraph.from_checkpoint(written / "no" / "folder")
    with pytest.raises(CheckpointError, match=f"did you mean '{written}/graph'"):
        MaseGraph.from_checkpoint(written)


@pytest.mark.parametrize("suffix", [".pt", ".mz"])
def test_half_a_checkpoint_is_refused(written: Path, suffix: str) -> None:
    (written / f"graph{suffix}").unlink()
    refused(written, f"graph\\{suffix}' is missing")


def test_a_lone_tensor_file_is_a_checkpoint_and_weights_of_torch_are_not(written: Path) -> None:
    (written / "graph.mz").unlink()
    assert find_checkpoint(written / "graph.pt") == written / "graph"
    torch.save(net().model.state_dict(), written / "graph.pt")
    assert find_checkpoint(written / "graph.pt") is None


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


def test_a_flipped_bit_of_the_graph_is_refused_or_says_the_same(written: Path) -> None:
    path = written / "graph.mz"
    data, whole = path.read_bytes(), read_document(path)
    refusals = 0
    for place in [*range(0, len(data), len(data) // 80), *range(len(data) - 90, len(data))]:
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            found = read_document(path)
        except CheckpointError:
            refusals += 1
        else:  # white space at the end, or the name of the digest
            assert {name: found[name] for name in whole} == whole
    assert refusals > 150


def test_a_number_that_is_changed_or_a_graph_without_digest(written: Path) -> None:
    path = written / "graph.mz"
    text = path.read_text()
    path.write_text(text.replace('"num_features": 8', '"num_features": 9'))
    assert path.read_text() != text
    refused(written, "does not match the SHA-256 at its end")
    head, _, _ = text.rpartition(",")  # as the message says
    path.write_text(head + "}")
    assert_same(MaseGraph.from_checkpoint(written / "graph"), net())
    path.write_text(text)
    edit(written, lambda document: None)  # as earlier versions wrote it
    assert_same(MaseGraph.from_checkpoint(written / "graph"), net())


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "corrupt"),
        ("[" * 100_000, "corrupt"),
        ("[]", "not a chop checkpoint"),
        ('{"format": "other"}', "not a chop checkpoint"),
        ("\udcff", "corrupt"),
    ],
)
def test_corrupt_and_foreign_text_is_refused(written: Path, text: str, match: str) -> None:
    (written / "graph.mz").write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(written, match)


@pytest.mark.parametrize(
    ("version", "way_out"),
    [(99, "Upgrade mase-chop"), (4, "Upgrade"), (2, "Capture the model again"), ("3", "Capture")],
)
def test_a_file_of_another_version_is_refused(written: Path, version: Any, way_out: str) -> None:
    edit(written, lambda document: document.update(version=version))
    refused(written, f"version '?{version}'?; this chop reads version 3. {way_out}")


@pytest.mark.parametrize("key", ["nodes", "modules", "tensors", "attributes", "tensor_file"])
def test_a_file_that_lacks_a_part_is_refused(written: Path, key: str) -> None:
    edit(written, lambda document: document.pop(key))
    refused(written, "malformed")


@pytest.mark.parametrize(
    ("metadata", "match"),
    [("!", "malformed"), ("AAAA", "metadata cannot be unpacked"), ("eJwDAAAAAAE=", "malformed")],
)
def test_metadata_that_cannot_be_unpacked_is_refused(
    written: Path, metadata: str, match: str
) -> None:
    edit(written, lambda document: document.update(metadata=metadata))
    refused(written, match)


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


@subcases("reference", FUNCTIONS)
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
        "chop.captured.module:CapturedModule", "antigravity:x", "torch.nn.modules.linear",
    ],
)  # fmt: skip
def test_classes_off_the_list_are_refused_by_name(written: Path, reference: str) -> None:
    edit(written, lambda document: document["modules"][1].update({"class": reference}))
    refused(written, f"class '{reference}'")


INJECTION = 'x"); __import__("pathlib").Path("MARK").touch(); ("'


@pytest.mark.sampled(15)
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
    refused(written, "invalid attribute")


def test_module_paths_that_could_become_code_are_refused(written: Path) -> None:
    edit(written, lambda document: document["modules"][1].update(path=INJECTION))
    refused(written, "invalid path|not there")


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
