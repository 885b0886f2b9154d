"""Files of a folder that name classes, files and sizes to transformers."""

import json
import os
import zipfile
from zipfile import ZIP_DEFLATED as DEFLATED

import pytest
import torch

from chop.data.tokenizer import find_processor, get_tokenizer
from chop.errors import CheckpointError, ChopError, ConfigError
from chop.models import load_model
from chop.models.meta import meta_model
from chop.workloads.checkpoint import _architecture
from tests.base.files.test_mutants import _llama, _model, _sharded


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model of each kind, and a function that copies one with changes."""
    import shutil

    folders = {}

    def changed(make, to, **settings):
        if make not in folders:
            folders[make] = tmp_path_factory.mktemp("model")
            make(folders[make])
        shutil.copytree(folders[make], to)
        config = json.loads((to / "config.json").read_text())
        (to / "config.json").write_text(json.dumps({**config, **settings}))
        return to

    return changed


NAMES = [
    "pipeline",
    "Trainer",
    "BertConfig",
    "BertTokenizer",
    "PreTrainedModel",
    "__name__",
    "set_seed",
]


@pytest.mark.parametrize("name", NAMES)
def test_an_architecture_is_a_class_of_models(name, made, tmp_path):
    folder = made(_model, tmp_path / "a", architectures=[name])
    for load in (load_model, meta_model):
        with pytest.raises(ConfigError, match=f"'{name}', which is not a Hugging Face model"):
            load(str(folder))


@pytest.mark.parametrize("names", ["BertModel", [5], {"a": 1}, [["a"]], [None], 7])
def test_architectures_are_names(names, made, tmp_path):
    folder = made(_model, tmp_path / "a", architectures=names)
    for read in (load_model, _architecture):
        with pytest.raises(ConfigError, match=r"class names in 'architectures'"):
            read(str(folder))


@pytest.mark.parametrize("name", ["AutoModel", "BertModel", "OneOfTomorrow"])
def test_other_architectures_stay_as_they_were(name, made, tmp_path):
    folder = made(_model, tmp_path / "a", architectures=[name])
    assert type(load_model(str(folder))).__name__ == "BertModel"


@pytest.mark.parametrize(
    "settings",
    [
        *({"num_attention_heads": 0}, {"hidden_size": 0}, {"vocab_size": 0}, {"pad_token_id": 999}),
        *({"hidden_act": "none"}, {"dtype": [1]}, {"quantization_config": {"quant_method": ["a"]}}),
        {"quantization_config": {"quant_method": "chop", "modules": [1]}},
    ],
    ids=str,
)
def test_settings_that_make_no_model_are_one_sentence(settings, made, tmp_path):
    folder = made(_model, tmp_path / "broken", **settings)
    for labels in (None, 3):
        with pytest.raises(ChopError, match="broken") as caught:
            load_model(str(folder), num_labels=labels)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("settings", [{"num_key_value_heads": 0}, {"head_dim": 0}], ids=str)
def test_heads_without_size_are_one_sentence(settings, made, tmp_path):
    folder = made(_llama, tmp_path / "broken", **settings)
    with pytest.raises(ConfigError, match="transformers cannot build the model"):
        load_model(str(folder))
    with pytest.raises(CheckpointError, match="does not create a model"):
        meta_model(str(folder))


@pytest.mark.parametrize(
    "index",
    [
        *([], {}, {"weight_map": [1]}, {"weight_map": None}, {"weight_map": {"a": 1}}),
        *({"weight_map": {"a": x}} for x in ("../x", "/dev/zero", "a\0b", ["x"], "", ".", "..")),
        {"weight_map": {"a": "a.safetensors"}, "metadata": [1]},
    ],
    ids=str,
)
def test_an_index_names_files_of_its_folder(index, made, tmp_path):
    folder = made(_sharded, tmp_path / "a")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json'"):
        load_model(str(folder))


def test_compressed_weights_of_a_folder_are_refused(made, tmp_path):
    folder = made(_model, tmp_path / "a")
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(9)}, tmp_path / "b.pt")
    path = folder / "pytorch_model.bin"
    with zipfile.ZipFile(tmp_path / "b.pt") as old, zipfile.ZipFile(path, "w", DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(CheckpointError, match="is compressed"):
        load_model(str(folder))


def _tokenizer_with(folder, **changes):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


SPLIT = {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": SPLIT},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"model": {"type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]}},
        {"added_tokens": {"a": 1}},
        {"version": "9.0"},
    ],
    ids=str,
)
def test_a_tokenizer_that_its_library_does_not_take_is_one_sentence(
    changes, made, tmp_path, caplog, capfd
):
    """A charsmap that is none is a panic of Rust, which is no Exception, and prints its stack."""
    folder = made(_model, tmp_path / "named")
    _tokenizer_with(folder, **changes)
    with pytest.raises(CheckpointError, match=r"named['/].*tokenizer.* cannot be read: \w"):
        get_tokenizer(str(folder))
    assert find_processor(str(folder)) is None
    assert "It is not used." in caplog.text
    assert "panicked" not in capfd.readouterr().err


def test_a_pipe_in_the_place_of_a_tokenizer_is_refused(made, tmp_path):
    folder = made(_model, tmp_path / "a")
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")
    for read in (get_tokenizer, load_model):
        with pytest.raises(CheckpointError, match=r"tokenizer\.json' cannot be read.*a pipe"):
            read(str(folder))
