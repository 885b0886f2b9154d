"""generation_config.json is what it was after a folder was read and written again."""

import json

import pytest
import torch
from transformers import GenerationConfig

from chop import MaseGraph, passes
from chop.errors import CheckpointError
from chop.models import load_model
from chop.models.meta import meta_model
from tests.export.compressed_tensors.test_reader import by_hand
from tests.export.decoders import decoder
from tests.models.test_places import FOLDERS

SETTINGS = {"eos_token_id": [2, 7, 9], "do_sample": True, "top_p": 0.8, "max_new_tokens": 5}


def coded_folder(folder, method):
    folder.mkdir()
    {**FOLDERS, "compressed-tensors": by_hand}[method](folder)
    (folder / "generation_config.json").write_text(json.dumps(SETTINGS))
    return folder


def get_settings(model):
    found = model.generation_config.to_dict()
    return {key: found.get(key) for key in SETTINGS}


@pytest.mark.parametrize("method", ["compressed-tensors", "gptq", "awq"])
@pytest.mark.sampled(2)
def test_stop_tokens_of_a_coded_folder_are_read_and_written(method, tmp_path):
    folder = coded_folder(tmp_path / "coded", method)
    model = load_model(folder)
    assert get_settings(model) == SETTINGS
    assert model.name_or_path == model.config.name_or_path == str(folder)
    model.save_pretrained(tmp_path / "again")
    assert get_settings(load_model(tmp_path / "again")) == SETTINGS
    written = GenerationConfig.from_pretrained(tmp_path / "again")
    assert written.eos_token_id == [2, 7, 9] and written.top_p == 0.8


@pytest.mark.long
def test_they_stay_in_checkpoints_and_in_folders_of_other_tools(tmp_path):
    mg = MaseGraph(load_model(coded_folder(tmp_path / "coded", "compressed-tensors")))
    assert get_settings(mg.to_module()) == SETTINGS
    mg.export(tmp_path / "graph")
    restored = MaseGraph.from_checkpoint(tmp_path / "graph")
    assert get_settings(restored.to_module()) == SETTINGS
    settings = {"to": "compressed-tensors", "path": str(tmp_path / "written")}
    passes.export_interface_pass(restored, settings)
    again = load_model(tmp_path / "written")
    assert get_settings(again) == SETTINGS
    ids = torch.arange(4)[None]
    expected = load_model(tmp_path / "coded")(ids).logits
    assert torch.equal(again(ids).logits, expected)


def test_a_broken_file_is_named(tmp_path):
    folder = coded_folder(tmp_path / "coded", "compressed-tensors")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2,')
    with pytest.raises(CheckpointError, match=r"generation_config\.json' cannot be read"):
        load_model(folder)
    load_model(tmp_path / "coded", num_labels=2)  # a classifier generates nothing
    plain = tmp_path / "plain"
    decoder("Llama").save_pretrained(plain)
    (plain / "generation_config.json").write_text("[]")
    for read in (load_model, meta_model):
        with pytest.raises(CheckpointError, match=r"generation_config\.json' cannot be read"):
            read(plain)
