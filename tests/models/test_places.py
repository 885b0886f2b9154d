"""Names on the hub whose files other tools wrote: found in the hub's cache, without a network."""

import json
import logging

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from chop.base import hub
from chop.errors import CheckpointError, ConfigError, UnavailableError
from chop.models import load_model, read_config
from chop.models.places import get_place
from chop.nn.packed import PackedOperator
from tests.export.decoders import decoder
from tests.export.gguf import gguf_bytes
from tests.export.tools import awq_parts, awq_settings, gptq_parts, gptq_settings, write_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub, which cannot be reached."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(hub, "hub_is_reachable", lambda: False)
    monkeypatch.setattr("chop.models.load.hub_is_reachable", lambda: False)
    return folder


def cached(cache, name, files):
    """Puts files into the cache as the hub's client does: blobs, and links to them by name."""
    home = cache / f"models--{name.replace('/', '--')}"
    for part in ("refs", "blobs", f"snapshots/{COMMIT}"):
        (home / part).mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    for number, (file, data) in enumerate(files.items()):
        (home / "blobs" / f"{number:040x}").write_bytes(data)
        link = home / "snapshots" / COMMIT / file
        link.symlink_to(f"../../blobs/{number:040x}")
    return home / "snapshots" / COMMIT


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


FOLDERS = {
    "gptq": lambda path: write_folder(path, gptq_settings(4, 32), gptq_parts(4, 32)),
    "awq": lambda path: write_folder(path, awq_settings(32), awq_parts(32)),
}


@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.sampled(1)
def test_folders_of_other_tools_are_found_by_name(kind, cache, tmp_path):
    (tmp_path / "made").mkdir()
    values = FOLDERS[kind](tmp_path / "made")
    cached(cache, "org/model", files_of(tmp_path / "made"))
    model = load_model("org/model")
    for path, value in values.items():
        layer = model.get_submodule(path)
        assert isinstance(layer, PackedOperator) and torch.equal(layer.weight, value)
    assert type(load_model("org/model", pretrained=False)).__name__ == "LlamaForCausalLM"


def test_files_of_gguf_are_found_by_name(cache):
    plain = gguf_bytes.llama().content()
    folder = cached(cache, "org/one-GGUF", {"model-q8.gguf": plain, "README.md": b"x"})
    assert get_place("org/one-GGUF") == folder / "model-q8.gguf"
    model = load_model("org/one-GGUF")
    assert isinstance(model.lm_head, PackedOperator)
    assert read_config("org/one-GGUF").model_type == "llama"
    cached(cache, "org/two", {"a.gguf": plain, "b.gguf": plain, "config.json": b"{}"})
    with pytest.raises(ConfigError, match=r"2 files in the hub cache: name one of org/two/a\.gguf"):
        load_model("org/two")
    assert isinstance(load_model("org/two/b.gguf").lm_head, PackedOperator)


def test_what_is_not_there_is_told_in_a_sentence(cache, tmp_path):
    (tmp_path / "made").mkdir()
    FOLDERS["gptq"](tmp_path / "made")
    files = files_of(tmp_path / "made")
    cached(cache, "org/half", {"config.json": files["config.json"]})
    with pytest.raises(UnavailableError, match="run 'hf download org/half' where one can be"):
        load_model("org/half")
    with pytest.raises(
        UnavailableError, match=r"neither a local path .*: run 'hf download org/x a/b\.gguf'"
    ):
        load_model("org/x/a/b.gguf")
    with pytest.raises(UnavailableError, match="'org/none': a model not found in a local folder"):
        load_model("org/none")


def test_paths_are_taken_as_they_are(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "model").mkdir(parents=True)
    cached(cache, "org/model", {"a.gguf": b""})
    for name in ("org/model", str(tmp_path), "../up/and.gguf", "file.py:Net", "/a/b", "a/b/c"):
        assert str(get_place(name)) == name


def with_layers(folder, there, said):
    """A folder with tensors of some layers, and a config.json that says how many there are."""
    model = decoder("Llama")
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    first = {name: x for name, x in tensors.items() if ".layers.0." in name}
    for number in range(1, there):
        tensors |= {k.replace(".0.", f".{number}."): x.clone() for k, x in first.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": said}))


def test_layers_without_weights_are_an_error(tmp_path, caplog):
    with_layers(tmp_path, 2, 4)
    match = r"4 layers 'model\.layers', and its files 2: 'model\.layers\.2' is missing"
    with pytest.raises(CheckpointError, match=match):
        load_model(tmp_path)
    with pytest.raises(CheckpointError, match=match.replace(r"model\\.", "")):
        load_model(tmp_path, num_labels=3)
    with_layers(tmp_path, 2, 2)
    with caplog.at_level(logging.WARNING, "chop.models"):
        assert len(load_model(tmp_path).model.layers) == 2
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_pointers_of_git_lfs_are_named(name, tmp_path):
    with_layers(tmp_path, 1, 1)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345678\n"
    (tmp_path / name).write_text(pointer)
    with pytest.raises(CheckpointError, match=f"{name}' is a pointer of Git LFS.*git lfs pull"):
        load_model(tmp_path)


def test_layers_beyond_those_of_the_model_are_told(tmp_path, caplog):
    with_layers(tmp_path, 3, 1)
    with caplog.at_level(logging.WARNING, "chop.models"):
        assert len(load_model(tmp_path).model.layers) == 1
    assert "has fewer layers: model.layers.1, model.layers.2" in caplog.text


def test_coded_folders_have_all_layers_too(tmp_path):
    FOLDERS["gptq"](tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match=r"weights lack 'model\.layers\.1\.input"):
        load_model(tmp_path)


@pytest.mark.parametrize(("name", "advises"), [("resnet18", True), ("org/none", False)])
def test_a_plain_name_may_be_one_of_timm(name, advises, monkeypatch):
    monkeypatch.setattr("chop.models.load.hub_is_reachable", lambda: False)
    with pytest.raises(UnavailableError) as failure:
        load_model(name)
    assert (f"a timm model as 'timm:{name}'" in str(failure.value)) == advises
