"""Weights by slices, from safetensors files and from checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from chop.distributed.load import CheckpointSource, SafetensorsSource, meta_graph
from chop.distributed.placements import local_slices
from chop.distributed.plan import named_tensors
from chop.errors import CheckpointError
from chop.ir.graph import MaseGraph
from tests.experts import mixture, with_layers
from tests.ir.checkpoint_cases import net

INDEX = "model.safetensors.index.json"


class Body(nn.Module):
    """Tables and layers, as the body of a language model has them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.layer = nn.Linear(4, 6)

    def forward(self, index: Tensor) -> Tensor:
        return self.layer(self.table(index))


class Whole(nn.Module):
    """The body and a head tied to its table."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body()
        self.back = nn.Linear(6, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.body.table.weight

    def forward(self, index: Tensor) -> Tensor:
        return self.head(self.back(self.body(index)))


def meta(cls: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return cls()


@pytest.fixture
def whole() -> nn.Module:
    torch.manual_seed(0)
    return Whole()


def state(model: nn.Module, **others: Tensor) -> dict[str, Tensor]:
    """What transformers would write of it: the tied tensor once."""
    tensors = {n: x.detach() for n, x in model.state_dict().items() if n != "head.weight"}
    return tensors | others


def write_shards(folder: Path, model: nn.Module) -> None:
    """Two shards and their index."""
    tensors = list(state(model).items())
    shards = {"a.safetensors": dict(tensors[:2]), "b.safetensors": dict(tensors[2:])}
    for name, content in shards.items():
        save_file(content, folder / name)
    places = {key: name for name, content in shards.items() for key in content}
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))


def assert_parts_make_up(source: Any, tensors: dict[str, Tensor], processes: int = 3) -> None:
    """Every tensor, cut along each dimension, is the whole again; parts have their own memory."""
    for name, tensor in tensors.items():
        for dim in range(tensor.ndim):
            parts = [
                source.read(name, local_slices(tensor.shape, (processes,), (rank,), (f"S{dim}",)))
                for rank in range(processes)
            ]
            assert torch.equal(torch.cat(parts, dim), tensor), name
            assert all(x.is_contiguous() and x.dtype == tensor.dtype for x in parts)
            assert all(x.untyped_storage().nbytes() == x.nbytes for x in parts)
        assert torch.equal(source.read(name, tuple(map(slice, tensor.shape))), tensor), name


@pytest.mark.parametrize("form", ["file", "folder", "shards"])
def test_parts_of_safetensors_make_up_the_tensors(tmp_path: Path, whole: Any, form: str) -> None:
    path = tmp_path
    if form == "shards":
        write_shards(path, whole)
    else:
        save_file(state(whole), path / "model.safetensors")
        path = path / "model.safetensors" if form == "file" else path
    assert_parts_make_up(SafetensorsSource(path, meta(Whole)), dict(named_tensors(whole)))


def test_a_body_reads_the_file_of_the_whole_and_the_other_way_round(
    tmp_path: Path, whole: Any
) -> None:
    save_file(state(whole), tmp_path / "whole.safetensors")
    save_file(state(whole.body), tmp_path / "body.safetensors")
    body = SafetensorsSource(tmp_path / "whole.safetensors", meta(Body))
    assert_parts_make_up(body, dict(named_tensors(whole.body)))
    model = meta(Whole)
    model.back = nn.Linear(6, 4)  # on the CPU: not looked up
    source = SafetensorsSource(tmp_path / "body.safetensors", model)
    tied = {"head.weight": whole.head.weight, "body.table.weight": whole.head.weight}
    assert_parts_make_up(source, {**tied, "body.layer.weight": whole.body.layer.weight})
    with pytest.raises(
        CheckpointError, match=r"'back\.weight' is not a tensor of the model on the meta"
    ):
        source.read("back.weight", (slice(4), slice(6)))


def test_two_tensors_that_may_be_the_one_are_refused(tmp_path: Path, whole: Any) -> None:
    twice = {f"{part}.{n}": x for part in ("encoder", "decoder") for n, x in state(whole).items()}
    save_file({n: x.clone() for n, x in twice.items()}, tmp_path / "twice.safetensors")
    with pytest.raises(CheckpointError, match=r"both 'decoder\.b\S+' and 'encoder\.b\S+' of"):
        SafetensorsSource(tmp_path / "twice.safetensors", meta(Whole))


def test_weights_come_in_the_dtype_of_the_model(tmp_path: Path, whole: Any) -> None:
    save_file(state(whole), tmp_path / "model.safetensors")
    source = SafetensorsSource(tmp_path, meta(Whole).bfloat16())
    expected = {n: x.bfloat16() for n, x in named_tensors(whole)}
    assert_parts_make_up(source, expected)


def _cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def _edit_index(path: Path, change: Callable[[dict[str, str]], object]) -> None:
    document = json.loads(path.read_text())
    change(document["weight_map"])
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "b.safetensors").unlink(), "lacks 1 of the 2 files .* 'b.safetensors'; "),
        (lambda f: _cut_off(f / "a.safetensors"), "a.safetensors' is not a readable safetensors"),
        (lambda f: (f / INDEX).write_text("{}"), "is not a valid index of weights: KeyError"),
        (lambda f: (f / INDEX).unlink(), "has no weights: expected a safetensors file, or "),
        (
            lambda f: _edit_index(f / INDEX, lambda names: names.pop("back.bias")),
            "lacks the model's tensor 'back.bias'; the nearest is 'back.weight'",
        ),
        (
            lambda f: _edit_index(f / INDEX, lambda names: names.update(other="a.safetensors")),
            "a.safetensors' lacks the tensor 'other', which model.safetensors.index.json lists",
        ),
        (
            lambda f: save_file({"back.bias": torch.ones(4)}, f / "model.safetensors"),
            "lacks the model's tensor 'body.table.weight'",
        ),
        (
            lambda f: save_file(
                state(Whole(), **{"back.bias": torch.ones(5)}), f / "model.safetensors"
            ),
            r"tensor 'back.bias': the model has the shape \(4,\), .*model.safetensors' has \(5,\)",
        ),
    ],
)
def test_broken_folders_are_refused_in_one_sentence(
    tmp_path: Path, whole: Any, damage: Callable[[Path], object], message: str
) -> None:
    write_shards(tmp_path, whole)
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=message) as caught:
        SafetensorsSource(tmp_path, meta(Whole))
    assert "\n" not in str(caught.value)


def test_parts_beyond_the_tensor_are_refused(tmp_path: Path, whole: Any) -> None:
    save_file(state(whole), tmp_path / "model.safetensors")
    source = SafetensorsSource(tmp_path, meta(Whole))
    with pytest.raises(CheckpointError, match=r"has the shape \(4,\), without a part \[\(3, 5"):
        source.read("back.bias", (slice(3, 5),))
    with pytest.raises(CheckpointError, match="without a part"):
        source.read("back.bias", (slice(0, 4), slice(0, 1)))


# --- chop's checkpoints ------------------------------------------------------------------------


@pytest.mark.parametrize("save_format", ["full_model", "state_dict"])
@pytest.mark.sampled(1)
def test_parts_of_a_checkpoint_make_up_the_tensors(tmp_path: Path, save_format: Any) -> None:
    mg = net()
    mg.export(tmp_path / "net", save_format)
    source = CheckpointSource(tmp_path / "net.mz", verify=save_format == "full_model")
    expected = {name: x.detach() for name, x in named_tensors(mg.model)}
    assert_parts_make_up(source, expected)
    without = meta_graph(tmp_path / "net")
    found = dict(named_tensors(without.model))
    assert {n: (x.shape, x.dtype) for n, x in found.items()} == {
        n: (x.shape, x.dtype) for n, x in expected.items()
    }
    in_the_document = set() if save_format == "full_model" else {"shift"}
    assert {name for name, x in found.items() if not x.is_meta} == in_the_document
    assert found["encode.weight"] is found["decode.weight"]
    assert without.model.code == mg.model.code


class Shared(nn.Module):
    """A layer at two paths, a number type that files lack, and a transposed weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 6))
        self.again = self.first
        self.first[0].weight = nn.Parameter(torch.randn(6, 6).t())
        self.register_buffer("turn", torch.randn(6, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.first(x)) + self.turn.real


def test_shared_layers_and_odd_types_are_read_too(tmp_path: Path) -> None:
    mg = MaseGraph(Shared(), dummy_in={"x": torch.randn(2, 6)})
    mg.export(tmp_path / "shared")
    source = CheckpointSource(tmp_path / "shared")
    expected = {name: x.detach() for name, x in named_tensors(mg.model)}
    assert_parts_make_up(source, expected)
    weight = mg.model.get_submodule("first").get_parameter("0.weight")
    assert torch.equal(source.read("again.0.weight", (slice(1, 3), slice(6))), weight[1:3])
    with pytest.raises(CheckpointError, match=r"no tensor 'first\.0\.wait'; the nearest is 'first"):
        source.read("first.0.wait", (slice(6),))


def test_broken_checkpoints_are_refused_in_one_sentence(tmp_path: Path) -> None:
    net().export(tmp_path / "net")
    file = tmp_path / "net.pt"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="does not belong to .*: its contents differ"):
        CheckpointSource(tmp_path / "net")
    CheckpointSource(tmp_path / "net", verify=False)
    _cut_off(file)
    for load in (meta_graph, lambda path: CheckpointSource(path, verify=False)):
        with pytest.raises(CheckpointError, match=r"cut off or corrupt: it has \d+ bytes, exp"):
            load(tmp_path / "net")
    file.unlink()
    with pytest.raises(CheckpointError, match=r"net\.pt' is missing: a checkpoint is two files"):
        meta_graph(tmp_path / "net")
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        CheckpointSource(tmp_path / "other")


@pytest.mark.parametrize("name", ["Mixtral", "GptOss"])
def test_matrices_of_experts_are_read_as_rows_of_one(tmp_path: Path, name: str) -> None:
    experts, meta = (with_layers(mixture(name)).model.layers[0].mlp.experts for _ in range(2))
    state = {key: x.contiguous() for key, x in experts.state_dict().items()}
    assert "gate_up_proj" in state and state["down_proj"].dim() == 3
    save_file(state, tmp_path / "experts.safetensors")
    source = SafetensorsSource(tmp_path / "experts.safetensors", meta.to("meta"))
    assert_parts_make_up(source, dict(named_tensors(experts)), processes=2)
