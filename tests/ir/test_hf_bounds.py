"""Folders of Hugging Face that ask for more than their weights have are refused early."""

import json
import shutil

import pytest
import torch
import transformers

from chop import MaseGraph, passes
from chop.errors import CheckpointError, ChopError, ConfigError
from chop.models import load_model
from chop.nn.packed import PackedOperator

CAUSAL = transformers.AutoModelForCausalLM
UP = "model.layers.0.mlp.up_proj"


@pytest.fixture(scope="module", params=["mxint", "group_affine"])
def folder(request, tmp_path_factory):
    """A packed decoder; the second format looks at the values of weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(vocab_size=32, num_attention_heads=2, **sizes)
    mg = MaseGraph(transformers.LlamaForCausalLM(config).eval())
    rules = {"linear": {"config": {"weight": {"name": request.param}}}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", **rules})
    mg, _ = passes.pack_transform_pass(mg, {"silent": True})
    out = tmp_path_factory.mktemp("folders") / "model"
    mg.save_pretrained(out)
    return out


@pytest.fixture
def edit(folder, tmp_path):
    def change(**values):
        target = shutil.copytree(folder, tmp_path / "edited")
        config = json.loads((target / "config.json").read_text())
        (target / "config.json").write_text(json.dumps(config | values))
        return target

    return change


@pytest.mark.parametrize(
    "values",
    [
        {"intermediate_size": 10**9},
        {"intermediate_size": 10**6},
        {"hidden_size": 10**5, "head_dim": 16},
        {"vocab_size": 10**8},
    ],
    ids=str,
)
@pytest.mark.sampled(1)
def test_layers_of_more_numbers_than_codes_are_not_made(values, edit, monkeypatch):
    packs = PackedOperator.of.__func__

    def small(cls, layer, *args):
        assert layer.weight.numel() <= 2**20
        return packs(cls, layer, *args)

    monkeypatch.setattr(PackedOperator, "of", classmethod(small))
    with pytest.raises(CheckpointError, match=r"numbers by the folder's config.json, its weights"):
        CAUSAL.from_pretrained(edit(**values))


ASKS = {
    "hidden": ({"hidden_size": 10**9}, "'hidden_size' is 1000000000, the weights of the folder"),
    "vocab": ({"vocab_size": 10**12}, "'vocab_size' is 1000000000000, the weights"),
    "layers": ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is .* expected 16384 at most"),
    "heads": ({"num_attention_heads": 10**9}, "'num_attention_heads' is 1000000000"),
    "labels": ({"num_labels": 10**9}, "'num_labels' is 1000000000, expected 1048576 at most"),
    "positions": ({"max_position_embeddings": 10**12}, "'max_position_embeddings' is"),
    "nested": ({"text_config": {"hidden_size": 10**10}}, "'hidden_size' is 10000000000"),
    "listed": ({"depths": [2, 10**8]}, "'depths' is 100000000, expected 16384 at most"),
    "deep": ({"rope_scaling": [[[]]] * 3}, None),
}


@pytest.mark.parametrize(("values", "message"), ASKS.values(), ids=ASKS)
def test_a_config_that_asks_for_too_much_is_refused_before_a_model_is_made(
    values, message, edit, monkeypatch
):
    def makes(*args, **kwargs):
        raise ChopError("it is made")

    monkeypatch.setattr("chop.models.load._read_weights", makes)
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", makes)
    with pytest.raises(ChopError, match=message or "it is made"):
        load_model(str(edit(**values)))


@pytest.mark.parametrize("pretrained", [True, False])
def test_a_key_that_is_there_twice_is_refused(pretrained, edit):
    target = edit()
    text = (target / "config.json").read_text()
    (target / "config.json").write_text('{"hidden_size": 1000000000, ' + text[1:])
    with pytest.raises(ConfigError, match=r"config.json' cannot be read: the key 'hidden_size'"):
        load_model(str(target), pretrained=pretrained)


def test_a_folder_within_bounds_is_loaded(folder):
    loaded = load_model(str(folder))
    assert isinstance(loaded.get_submodule(UP), PackedOperator)
