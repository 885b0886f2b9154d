"""Unusual and damaged folders of other tools: every tensor is used, or named in one sentence."""

import json

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from chop.errors import CheckpointError, ConfigError
from chop.models import load_model
from tests.export.decoders import decoder, logits, tokens
from tests.export.foreign.test_stored_experts import FLOATS
from tests.export.tools import (
    awq_parts,
    awq_settings,
    change_config,
    change_tensors,
    dense_logits,
    floats,
    gptq_parts,
    gptq_settings,
    groups,
    integers,
    packed,
    write_folder,
)

UP, DOWN = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"
QUERY = "model.layers.0.self_attn.q_proj"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


INTEGERS = integers()


def two_groups(first, second):
    """The first group of settings for targets of its own, and the second for other layers."""
    (one,), (two,) = (x["config_groups"].values() for x in (first, second))
    return {"quant_method": "compressed-tensors", "config_groups": {"a": one, "b": two}}


def with_targets(settings, *targets):
    settings["config_groups"]["group_0"]["targets"] = [*targets]
    return settings


def made_float(values, path, folder):
    """Puts the values of a layer in the place of its codes."""

    def edit(tensors):
        for name in [x for x in tensors if x.startswith(f"{path}.")]:
            del tensors[name]
        tensors[f"{path}.weight"] = values[path]

    change_tensors(folder, edit)


READ = {
    "an ignored layer has codes": (INTEGERS, {**packed(), "ignore": ["lm_head", "re:.*up_proj"]}),
    "an expression comes before a class": (
        INTEGERS,
        two_groups(with_targets(packed(), "re:.*(self_attn|mlp).*"), packed(8)),
    ),
    "the first of two expressions counts": (
        INTEGERS,
        two_groups(with_targets(packed(), "re:.*proj"), with_targets(packed(8), "re:.*q_proj")),
    ),
    "unknown settings": (
        INTEGERS,
        {**packed(observer="minmax", zp_dtype=None), "global_compression_ratio": None},
    ),
    "AWQ, a module that is not to be converted": (
        awq_parts(16),
        {**awq_settings(16), "modules_to_not_convert": ["up_proj"]},
    ),
    "GPTQ, a module that is left out": (
        gptq_parts(4, 16),
        gptq_settings(4, 16, dynamic={"-:.*up_proj.*": {}}),
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_float", [False, True], ids=["codes", "floats"])
@pytest.mark.parametrize("name", READ)
def test_settings_leave_a_layer_what_its_tensors_are(name, is_float, tmp_path):
    get_parts, settings = READ[name]
    values = write_folder(tmp_path, settings, get_parts)
    if is_float:
        made_float(values, UP, tmp_path)
    found = logits(load_model(tmp_path), tokens())
    torch.testing.assert_close(found, dense_logits(values, tokens()), rtol=1e-4, atol=1e-5)


def removed(*ends):
    return lambda x: [x.pop(f"{UP}.{end}") for end in ends]


def added(name, *shape):
    return lambda x: x.update({name: torch.ones(shape)})


def turned(name):
    return lambda x: x.update({name: x[name].T.contiguous()})


NAMED = {
    "a scale of activations": (added(f"{UP}.pre_quant_scale", 64), f"'{UP}.pre_quant_scale'"),
    "a second scale": (added(f"{UP}.weight_scale_2", 1), f"'{UP}.weight_scale_2'"),
    "a codebook": (added(f"{UP}.weight_codebook", 16), f"'{UP}.weight_codebook'"),
    "a scale of inputs": (added(f"{UP}.input_global_scale", 1), f"'{UP}.input_global_scale'"),
    "a scale of results": (added(f"{UP}.output_scale", 1), f"'{UP}.output_scale'"),
    "floats beside codes": (added(f"{UP}.weight", 96, 64), f"'{UP}' has a float weight"),
    "a bias": (added(f"{UP}.bias", 96), f"'{UP}.bias'"),
    "an adapter": (added(f"{UP}.lora_A.weight", 4, 64), f"'{UP}.lora_A.weight'"),
    "a layer beyond": (added("model.layers.7.mlp.up_proj.weight", 9), "model.layers.7"),
    "a zero point": (added(f"{UP}.weight_zero_point", 1), f"'{UP}.weight_zero_point'"),
    "a static scale of inputs": (added(f"{UP}.input_scale", 1), f"'{UP}.input_scale'"),
    "no scale": (
        removed("weight_scale"),
        f"'{UP}.weight_packed' has codes but no weight_scale",
    ),
    "no codes": (removed("weight_packed"), f"'{UP}' lacks weight_packed"),
    "no shape": (removed("weight_shape"), f"'{UP}' lacks weight_shape"),
    "nothing of a layer": (
        removed("weight_packed", "weight_scale", "weight_shape"),
        f"'{UP}.weight'",
    ),
    "turned codes": (turned(f"{QUERY}.weight_packed"), f"'{QUERY}' does not fit"),
    "turned scales": (turned(f"{QUERY}.weight_scale"), f"'{QUERY}' does not fit"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMED)
def test_tensors_without_a_use_are_named(name, tmp_path):
    write_folder(tmp_path, packed(), INTEGERS)
    edit, match = NAMED[name]
    change_tensors(tmp_path, edit)
    with pytest.raises((CheckpointError, ConfigError), match=match) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def sharded(folder, edit):
    """The folder in two files, with the index that `edit` makes of the right one."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    file.unlink()
    names = sorted(tensors)
    places = {name: SHARDS[at >= len(names) // 2] for at, name in enumerate(names)}
    for shard in SHARDS:
        own = {name: tensors[name] for name, place in places.items() if place == shard}
        save_file(own, folder / shard, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": edit(places)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


INDICES = {
    "as it is": lambda x: x,
    "without a scale": lambda x: {n: y for n, y in x.items() if n != f"{UP}.weight_scale"},
    "without a norm": lambda x: {n: y for n, y in x.items() if n != "model.norm.weight"},
    "with a tensor that is not there": lambda x: {**x, "model.extra.weight": SHARDS[0]},
    "with another file": lambda x: {**x, f"{UP}.weight_scale": SHARDS[0]},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", INDICES)
def test_tensors_are_found_whatever_an_index_says(name, tmp_path):
    values = write_folder(tmp_path, packed(), INTEGERS)
    sharded(tmp_path, INDICES[name])
    found = logits(load_model(tmp_path), tokens())
    torch.testing.assert_close(found, dense_logits(values, tokens()), rtol=1e-4, atol=1e-5)


def test_files_without_an_entry_or_a_file_are_named(tmp_path):
    write_folder(tmp_path, packed(), INTEGERS)
    sharded(tmp_path, lambda x: {name: y for name, y in x.items() if y == SHARDS[0]})
    with pytest.raises((CheckpointError, ConfigError), match="lack '"):
        load_model(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}))
    (tmp_path / SHARDS[1]).unlink()
    with pytest.raises(CheckpointError, match=f"{SHARDS[1]}' is missing"):
        load_model(tmp_path)


def test_another_method_does_not_say_how_codes_are_decoded(tmp_path):
    write_folder(tmp_path, {"quant_method": "mxfp4"}, INTEGERS)
    with pytest.raises(CheckpointError, match="that its config.json may have"):
        load_model(tmp_path)


@pytest.mark.parametrize("settings", [{}, [1], "gptq", {"bits": 4}])
def test_settings_without_a_method_are_refused(settings, tmp_path):
    write_folder(tmp_path, settings, INTEGERS)
    with pytest.raises(ConfigError, match=r"config\.json'.*expected an object with a quant_method"):
        load_model(tmp_path)


def with_codes(folder, model, name, size, dropped=()):
    """Codes of the table of a model under a name, with the settings of layers and tables."""
    parts, dense = floats()(np.random.default_rng(0), *size)
    for each in (f"{name}.weight", *dropped):
        change_tensors(folder, lambda x, each=each: x.pop(each, None))
    change_tensors(folder, lambda x: x.update({f"{name}.{end}": y for end, y in parts.items()}))
    settings = with_targets(groups("float-quantized", FLOATS), "Linear", "Embedding")
    change_config(folder, quantization_config=settings)
    table = model.get_input_embeddings()
    table.weight.data = dense.T.float().contiguous()


@pytest.mark.parametrize("home", ["model.embed_tokens", "lm_head"])
def test_codes_of_tied_layers_may_have_either_name(home, tmp_path):
    model = decoder("Llama", tied=True)
    model.save_pretrained(tmp_path)
    with_codes(tmp_path, model, home, (64, 96), ["model.embed_tokens.weight"])
    found = load_model(tmp_path)
    torch.testing.assert_close(logits(found, tokens()), logits(model, tokens()))
    assert found.lm_head.weight_codes is found.model.embed_tokens.weight_codes
    found.save_pretrained(tmp_path / "again")
    again = load_model(tmp_path / "again")
    assert torch.equal(logits(again, tokens()), logits(found, tokens()))


def test_codes_of_a_table_of_four_layers_are_shared(tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 96, "d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 1}
    config = transformers.T5Config(**sizes, num_heads=4, decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    with_codes(tmp_path, model, "shared", (32, 96))
    given = {"input_ids": tokens(), "decoder_input_ids": tokens()}
    with torch.no_grad():
        found, expected = (x(**given).logits for x in (load_model(tmp_path), model))
    torch.testing.assert_close(found, expected)


def test_a_table_whose_head_is_not_tied_does_not_make_it(tmp_path):
    model = decoder("Llama", tied=False)
    model.save_pretrained(tmp_path)
    with_codes(tmp_path, model, "model.embed_tokens", (64, 96), ["lm_head.weight"])
    with pytest.raises(CheckpointError, match=r"lack 'lm_head\.weight'"):
        load_model(tmp_path)
