import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import chop
from chop import MaseGraph
from chop.errors import CheckpointError, ConfigError
from chop.models import get_model
from chop.models.weights import load_weights
from chop.passes import pack_transform_pass
from chop.tools.checkpoint_load import load_model

X = torch.linspace(-1, 1, 32).view(2, 16)


@pytest.fixture
def trained():
    torch.manual_seed(1)
    model = get_model("jsc-tiny")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-1, 1)
    return model


def same(model, expected):
    return torch.equal(model(X), expected(X))


def test_a_graph(trained, tmp_path):
    MaseGraph(trained).export(tmp_path / "graph")
    assert same(load_model(tmp_path / "graph.mz"), trained)
    assert same(load_model(str(tmp_path / "graph"), load_type="mz"), trained)


def test_state_dicts_of_torch_safetensors_and_lightning(trained, tmp_path):
    state = trained.state_dict()
    torch.save(state, tmp_path / "a.pt")
    save_file(state, tmp_path / "b.pt")
    lightning = {"epoch": 3, "state_dict": {f"model.{name}": x for name, x in state.items()}}
    torch.save(lightning, tmp_path / "c.ckpt")
    for name, kind in (("a.pt", "pt"), ("b.pt", "pt"), ("c.ckpt", "pl")):
        fresh = get_model("jsc-tiny")
        assert not same(fresh, trained)
        assert load_model(tmp_path / name, kind, fresh) is fresh
        assert same(fresh, trained)


def test_what_goes_wrong_is_said(trained, tmp_path):
    with pytest.raises(ConfigError, match="load_type: got 'zip': choose from: mz, pl, pt"):
        load_model("x", "zip")
    with pytest.raises(ConfigError, match="pass model="):
        load_model(tmp_path / "a.pt", "pt")
    with pytest.raises(CheckpointError, match="there is no such file"):
        load_model(tmp_path / "a.pt", "pt", trained)
    (tmp_path / "a.pt").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="contains no readable weights"):
        load_model(tmp_path / "a.pt", "pt", trained)
    torch.save({"other": torch.zeros(1)}, tmp_path / "b.pt")
    with pytest.raises(CheckpointError, match="does not fit the model"):
        load_model(tmp_path / "b.pt", "pt", trained)
    for found in (torch.zeros(2), {"state_dict": [1]}):
        torch.save(found, tmp_path / "c.pt")
        with pytest.raises(CheckpointError, match=r"contains a (Tensor|list), expected tensors by"):
            load_model(tmp_path / "c.pt", "pt", trained)


def test_a_pickle_that_would_run_code_is_not_loaded(trained, tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("ran",))

    torch.save(Evil(), tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match="contains no readable weights"):
        load_model(tmp_path / "evil.pt", "pt", trained)


def test_weights_that_chop_has_packed_are_named(trained, tmp_path):
    mg, _ = pack_transform_pass(MaseGraph(chop.quantize(trained, "8.auto")), {"silent": True})
    mg.export(tmp_path / "model")
    for name in ("model.mz", "model.pt"):
        loads = f"packed codes: MaseGraph.from_checkpoint.'{tmp_path}/model'. loads it"
        with pytest.raises(CheckpointError, match=loads):
            load_weights(get_model("jsc-tiny"), tmp_path / name)
    (tmp_path / "manifest.json").write_text("{}")
    for path in (tmp_path, tmp_path / "model.pt"):
        with pytest.raises(CheckpointError, match=f"as in chop evaluate {tmp_path}, or pass the"):
            load_weights(get_model("jsc-tiny"), path)
    (tmp_path / "model.mz").unlink()
    with pytest.raises(CheckpointError, match="is the output folder of a chop command: pass the f"):
        load_weights(get_model("jsc-tiny"), tmp_path)


def in_shards(state, folder):
    index = {}
    for number, (name, tensor) in enumerate(state.items()):
        index[name] = f"part-{number}.safetensors"
        save_file({name: tensor}, folder / index[name])
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return path


CONTAINERS = {
    "a key of their own": lambda state: {"epoch": 3, "model_state_dict": state},
    "beside the optimizer": lambda state: {"net": state, "optimizer": {"lr": 1, "state": {}}},
    "data parallel": lambda state: {"state_dict": {f"module.{n}": x for n, x in state.items()}},
    "compiled": lambda state: {f"_orig_mod.{n}": x for n, x in state.items()},
    "lightning": lambda state: {"state_dict": {f"net.body.{n}": x for n, x in state.items()}},
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_weights_are_found_wherever_a_script_has_put_them(trained, tmp_path, kind):
    torch.save(CONTAINERS[kind](trained.state_dict()), tmp_path / "a.pt")
    assert same(load_weights(get_model("jsc-tiny"), tmp_path / "a.pt"), trained)


@pytest.mark.parametrize("is_folder", [False, True])
def test_shards_are_read_by_their_index_or_folder(trained, tmp_path, is_folder):
    index = in_shards(trained.state_dict(), tmp_path)
    fresh = get_model("jsc-tiny")
    assert same(load_weights(fresh, tmp_path if is_folder else index), trained)
    next(tmp_path.glob("part-*")).unlink()
    with pytest.raises(CheckpointError, match="lacks 1 of the"):
        load_weights(fresh, tmp_path if is_folder else index)


@pytest.mark.parametrize("kind", ["module", "program", "arrays", "two models", "nothing"])
def test_files_without_weights_of_one_model_say_what_they_have(trained, tmp_path, kind):
    path, state = tmp_path / "a.pt", trained.state_dict()
    expected = "expected only tensors"
    if kind == "module":
        torch.save(trained, path)
        expected += r".*; it names 'chop\.models\.plain\.\w+', which is code, as written by torch"
    elif kind == "program":
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
        expected += ".*; it is a TorchScript program"
    elif kind == "arrays":
        np.savez(tmp_path / "a.npz", weight=np.zeros(2))
        (tmp_path / "a.npz").rename(path)
    elif kind == "two models":
        torch.save({"net": state, "average": state}, path)
        expected = "contains weights under net, average: save each model"
    else:
        torch.save({"epoch": 3, "history": {"loss": 0.1}}, path)
        expected = "does not fit the model"
    with warnings.catch_warnings(), pytest.raises(CheckpointError, match=expected) as caught:
        warnings.simplefilter("ignore")
        load_weights(trained, path)
    assert "weights_only" not in str(caught.value) and "\x1b" not in str(caught.value)


@pytest.mark.parametrize("key", ["state_dict", "model", "net"])
@pytest.mark.parametrize("value", [np.float64(0.9), argparse.Namespace(lr=0.1), Path("a")])
def test_objects_beside_the_weights_are_told_from_a_saved_model(trained, tmp_path, key, value):
    path, state = tmp_path / "a.pt", trained.state_dict()
    torch.save({"best": value, key: state}, path)
    name = "key" if key == "net" else f"'{key}'"
    match = rf"is not a tensor, '\S+'\. If you .*: torch\.save\(checkpoint\[{name}\], \.\.\.\)\.$"
    with pytest.raises(CheckpointError, match=match):
        load_weights(trained, path)
    torch.save(torch.load(path, weights_only=False)[key], path)
    assert same(load_weights(get_model("jsc-tiny"), path), trained)


NO_WEIGHTS = {
    "parts of complex numbers": (torch.eye(4) * 1j, "complex64 in the file, float32 in the model"),
    "codes": (torch.ones(4, 4, dtype=torch.int8), "int8 in the file"),
    "codes without a sign": (torch.ones(4, 4, dtype=torch.uint8), "uint8 in the file"),
    "sparse": (torch.eye(4).to_sparse(), "float32 sparse_coo in the file"),
    "meta": (torch.empty(4, 4, device="meta"), "float32 without data in the file"),
    "meta of another shape": (torch.empty(10**6, 10**6, device="meta"), "of another shape"),
}


@pytest.mark.parametrize("kind", NO_WEIGHTS)
def test_numbers_that_would_be_changed_silently_are_refused(kind, tmp_path):
    weight, said = NO_WEIGHTS[kind]
    torch.save({"weight": weight, "bias": torch.ones(4)}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=f"does not fit the model Linear: .*{said}"):
        load_weights(nn.Linear(4, 4), tmp_path / "a.pt")


def test_tensors_without_names_are_refused(tmp_path):
    torch.save({1: torch.ones(4, 4), None: torch.ones(4)}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="has tensors under 1, None, expected names"):
        load_weights(nn.Linear(4, 4), tmp_path / "a.pt")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_weights_of_other_widths_are_read(dtype, tmp_path):
    torch.save({"weight": torch.eye(4).to(dtype), "bias": torch.ones(4)}, tmp_path / "a.pt")
    loaded = load_weights(nn.Linear(4, 4), tmp_path / "a.pt")
    assert torch.equal(loaded.weight, torch.eye(4))
