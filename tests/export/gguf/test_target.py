"""GGUF: every code as ggml decodes it, the same logits in transformers, refusals by module."""

import copy
import enum
import functools
import json
import math
import re

import numpy as np
import pytest
import torch
import transformers
from transformers.pytorch_utils import Conv1D

from chop import MaseGraph, passes
from chop.errors import ConfigError, WriteError
from chop.export.gguf.header import gguf_file
from chop.export.gguf.rope import frequency_divisors
from chop.export.gguf.target import TARGET, read_model
from chop.export.packed_model import packed_model
from chop.formats import parse_format_string
from chop.models import load_model
from chop.nn.packed import PackedOperator
from tests.export.decoders import rounded
from tests.limits import files_up_to

gguf = pytest.importorskip("gguf", reason="GGUF files are written by gguf: pip install gguf")

VOCABULARY = 288
IDS = torch.tensor([[5, 6, 7, 8, 90, 2], [9, 8, 7, 6, 1, 0]])
# format: (type, the format that it is read in)
FORMATS = {
    "mxint:width=8": ("Q8_0", "group_integer"),
    "mxint:width=4": ("Q4_0", "group_integer"),
    "group_integer:width=4": ("Q4_0", "group_integer"),
    "group_integer:width=5": ("Q5_0", "group_integer"),
    "group_integer:width=6:group_size=64": ("Q8_0", "group_integer"),
    "mxfp:width=4": ("MXFP4", "mxfp"),
}
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 4, "num_hidden_layers": 2}
OF_KIND = {
    "qwen3": {"head_dim": 32},
    "phi3": {"pad_token_id": 0},
    "gemma2": GEMMA
    | {
        "tie_word_embeddings": True,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 1.5,
    },
    "gemma3": GEMMA | {"final_logit_softcapping": 1.5},
    "starcoder2": {"tie_word_embeddings": True},
    "nemotron": {"head_dim": 16},
    "smollm3": {"pad_token_id": 0, "num_hidden_layers": 4},
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.3,
        "logits_scaling": 2.0,
    },
    "gemma": {"head_dim": 32, "tie_word_embeddings": True},
    "exaone": {"pad_token_id": 0},
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"]},
    "glm4": {"head_dim": 16, "pad_token_id": 0},
    "lfm2": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2, "norm_eps": 1e-4},
}
"""Settings that matter, and no defaults."""


def language_model(kind, **changes):
    torch.manual_seed(0)
    sizes = {**SIZES, "tie_word_embeddings": False, "num_key_value_heads": 2}
    if kind == "gpt2":
        names = {"n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 48}
        tokens = {"bos_token_id": 1, "eos_token_id": 2, "vocab_size": VOCABULARY}
        config = transformers.GPT2Config(**names, **tokens, **changes)
    else:
        make = transformers.CONFIG_MAPPING["gemma3_text" if kind == "gemma3" else kind]
        config = make(**sizes | OF_KIND.get(kind, {}) | changes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms are constants otherwise
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


def captured(kind, **changes):
    """The graph of a language model, which no test changes: capturing is what costs most."""
    return _captured(kind, json.dumps(changes))


@functools.cache
def _captured(kind, changes):
    return MaseGraph(language_model(kind, **json.loads(changes)))


def quantized(model, linear="mxint:width=8", embedding=None):
    config = {"linear": linear, "embedding": embedding}
    rules = {kind: weight_in(fmt) for kind, fmt in config.items() if fmt}
    mg = model if isinstance(model, MaseGraph) else MaseGraph(model)
    return passes.quantize_transform_pass(mg, {"by": "type", **rules})[0]


def weight_in(fmt):
    return {"config": {"weight": parse_format_string(fmt)}}


def decoded_logits(mg):
    """Those of a float model with the decoded weights: packed products add in another order."""
    packed, _ = packed_model(mg, "test")
    config = copy.deepcopy(packed.config)
    config.tie_word_embeddings = False  # a head may have codes of its own
    plain = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for path, parameter in plain.named_parameters():
            place, _, name = path.rpartition(".")
            layer, is_weight = packed.get_submodule(place), name == "weight"
            values = getattr(layer, name).detach()
            is_turned = is_weight and values.ndim == 2 and isinstance(layer, torch.nn.Linear)
            is_turned &= isinstance(plain.get_submodule(place), Conv1D)
            parameter.copy_(values.t() if is_turned else values)
        return plain(IDS).logits


def check(mg, path, tokenizer=None):
    """Writes, and compares every weight and the logits; returns what was written."""
    info = TARGET.write(mg, path, tokenizer)
    assert info["path"] == path and info["bytes"] == path.stat().st_size
    assert [*path.parent.iterdir()] == [path]
    with torch.no_grad():
        found = read_model(path)(IDS).logits
    assert torch.equal(found, decoded_logits(mg))
    return info


def packed_layers(model):
    return {path: x for path, x in model.named_modules() if isinstance(x, PackedOperator)}


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def read_back(path):
    """The model of a file; its weights are those of transformers' own reading."""
    found, plain = load_model(path), read_model(gguf_file(path))
    for name, parameter in plain.named_parameters():
        place, _, operand = name.rpartition(".")
        values, home = getattr(found.get_submodule(place), operand), plain.get_submodule(place)
        is_turned = isinstance(home, Conv1D) and operand == "weight"
        assert torch.equal(values.t() if is_turned else values, parameter), name
    torch.testing.assert_close(logits(found), logits(plain), rtol=1e-4, atol=1e-5)
    return found


def test_a_full_disk_is_one_sentence_and_leaves_no_file(tmp_path):
    mg = quantized(captured("llama"))
    told = r"model\.gguf' cannot be written: .*; free some space.* MB are free\)\."
    for size in (100, 3000, 20_000):
        with files_up_to(size), pytest.raises(WriteError, match=told):
            TARGET.write(mg, tmp_path / "model.gguf")
        assert not [*tmp_path.iterdir()]


def weights_in(path):
    """By name, as ggml decodes them."""
    reader = gguf.GGUFReader(path)
    return {x.name: gguf.quants.dequantize(x.data, x.tensor_type) for x in reader.tensors}


def turned_back(rows, heads):
    """Rows of a query projection in the order of transformers."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.sampled(1)
def test_a_llama_keeps_every_code(fmt, tmp_path):
    mg = quantized(captured("llama"), fmt, embedding="mxint:width=4")
    path = tmp_path / "model.gguf"
    types, (kind, name) = check(mg, path)["tensors"], FORMATS[fmt]
    assert types["blk.0.ffn_up.weight"] == types["output.weight"] == kind
    assert types["token_embd.weight"] == "Q4_0" and types["output_norm.weight"] == "F32"
    found, (model, _) = weights_in(path), packed_model(mg, "test")
    assert {*types} == {*found}
    names = {
        "model.embed_tokens": "token_embd",
        "lm_head": "output",
        "model.layers.0.self_attn.v_proj": "blk.0.attn_v",
        "model.layers.0.mlp.gate_proj": "blk.0.ffn_gate",
        "model.layers.0.mlp.down_proj": "blk.0.ffn_down",
    }
    for ours, theirs in names.items():
        layer = model.get_submodule(ours)
        assert isinstance(layer, PackedOperator)
        assert np.array_equal(found[f"{theirs}.weight"], layer.weight.detach().numpy())
    attention = model.model.layers[0].self_attn
    for ours, theirs, heads in (("q_proj", "attn_q", 4), ("k_proj", "attn_k", 2)):
        rows = found[f"blk.0.{theirs}.weight"]
        expected = getattr(attention, ours).weight.detach().numpy()
        assert np.array_equal(turned_back(rows, heads), expected)
        assert not np.array_equal(rows, expected)
    layers = packed_layers(read_back(path))
    assert len(layers) == 9 and layers["lm_head"].spec.weight.name == name


def of_kind(kind, changes, fmt):
    """All weights in a format, but the head of a Gemma 2, which engines take from the embedding."""
    mg = captured(kind, **changes)
    if kind not in ("gemma", "gemma2"):
        return quantized(mg, fmt, embedding=fmt)
    paths = (path for path, x in mg.model.named_modules() if isinstance(x, torch.nn.Linear))
    rules = {path: weight_in(fmt) for path in paths if path != "lm_head"}
    return passes.quantize_transform_pass(mg, {"by": "name", **rules})[0]


CASES = [
    ("llama", {"tie_word_embeddings": True, "head_dim": 32}),
    ("mistral", {"sliding_window": None}),
    ("qwen3", {}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("phi3", {"rope_parameters": {"rope_theta": 5e3, "partial_rotary_factor": 0.5}}),
    ("gemma2", {}),
    ("gemma3", {"tie_word_embeddings": True}),
    ("stablelm", {}),
    ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True}),
    ("nemotron", {}),
    ("starcoder2", {}),
    ("gpt2", {}),
    ("gpt2", {"tie_word_embeddings": False, "n_inner": 96}),
]


YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 48,
}
BIASES = {"attention_bias": True, "mlp_bias": True}
NEW = [
    ("smollm3", {"tie_word_embeddings": True}),
    ("granite", {}),
    (
        "granite",
        {**BIASES, "rope_parameters": {**YARN, "attention_factor": 1.5 * (0.1 * math.log(4) + 1)}},
    ),
    ("olmo2", {}),
    ("gemma", {}),
    ("phi", {"rope_parameters": {"rope_theta": 5e3, "partial_rotary_factor": 0.5}}),
    ("exaone", {"rope_parameters": YARN}),
    ("exaone4", {}),
    ("glm4", {"attention_bias": True}),
    ("glm4", {"attention_bias": False}),
    ("llama", BIASES),
    ("llama", {"mlp_bias": True, "rope_parameters": YARN}),
    ("qwen3", {"rope_parameters": YARN}),
    ("lfm2", {}),
]
"""Architectures that chop reads itself, biases, and YaRN."""


@pytest.mark.parametrize(("kind", "changes"), CASES + NEW)
@pytest.mark.sampled(1)
def test_every_architecture_answers_in_transformers_and_is_read(kind, changes, tmp_path):
    mg = of_kind(kind, changes, "mxint:width=4")
    types = check(mg, tmp_path / "model.gguf")["tensors"]
    tied = mg.to_module().config.tie_word_embeddings
    has_head = not tied or kind == "gemma3"  # whose embedding is scaled, and stays float
    assert ("output.weight" in types) == has_head and "Q4_0" in types.values()
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    kinds = gguf.LlamaFileType  # that of most bytes, which are a small Gemma's embedding
    expected = kinds.ALL_F32 if "gemma" in kind else kinds.MOSTLY_Q4_0
    assert reader.get_field("general.file_type").contents() == expected
    assert reader.get_field("tokenizer.ggml.model").contents() == "no_vocab"
    model = read_back(tmp_path)  # the folder names its one file
    window = 4 if kind in ("gemma2", "gemma3") else None
    assert getattr(model.config, "sliding_window", None) == window
    if kind == "qwen2":
        assert model.lm_head.weight_codes is model.get_input_embeddings().weight_codes


@pytest.mark.long
def test_a_tied_head_in_a_format_of_its_own_is_written_beside_the_embedding(tmp_path):
    tied = captured("llama", tie_word_embeddings=True)
    alone = quantized(tied)
    types = TARGET.write(alone, tmp_path / "alone.gguf")["tensors"]
    assert (types["output.weight"], types["token_embd.weight"]) == ("Q8_0", "F32")
    with torch.no_grad():
        found = read_model(tmp_path / "alone.gguf")(IDS).logits
        assert torch.equal(found, rounded(alone)(IDS).logits)
    (tmp_path / "alone.gguf").unlink()
    mixed = quantized(tied, "mxint:width=8", embedding="mxint:width=4")
    types = check(mixed, tmp_path / "model.gguf")["tensors"]
    assert (types["output.weight"], types["token_embd.weight"]) == ("Q8_0", "Q4_0")


def test_formats_are_mixed_by_module_and_modules_are_left_float(tmp_path):
    rules = {}
    for path, fmt in {
        "lm_head": "mxfp:width=4",
        "model.layers.0.mlp.up_proj": "mxint:width=4",
    }.items():
        rules[path] = weight_in(fmt)
    mg = passes.quantize_transform_pass(captured("llama"), {"by": "name", **rules})[0]
    types = check(mg, tmp_path / "model.gguf")["tensors"]
    coded = {name: kind for name, kind in types.items() if kind != "F32"}
    assert coded == {"output.weight": "MXFP4", "blk.0.ffn_up.weight": "Q4_0"}


@pytest.mark.long
def test_layers_of_gpt2_that_stay_float_are_turned(tmp_path):
    rules = {"transformer.h.0.mlp.c_fc": weight_in("mxint:width=8")}
    mg = passes.quantize_transform_pass(captured("gpt2"), {"by": "name", **rules})[0]
    types = check(mg, tmp_path / "model.gguf")["tensors"]
    assert types["blk.0.ffn_up.weight"] == "Q8_0" and types["blk.0.ffn_down.weight"] == "F32"


@pytest.mark.long
def test_packed_biases_are_decoded(tmp_path):
    rules = weight_in("mxint:width=8")
    rules["config"]["bias"] = parse_format_string("mxint:width=4")
    mg = passes.quantize_transform_pass(captured("qwen2"), {"by": "type", "linear": rules})[0]
    assert "bias" in packed_model(mg, "test")[0].model.layers[0].self_attn.q_proj.packed_shapes
    types = check(mg, tmp_path / "model.gguf")["tensors"]
    assert (types["blk.0.attn_q.bias"], types["blk.0.attn_q.weight"]) == ("F32", "Q8_0")


def test_adapters_are_refused_by_module(tmp_path):
    mg = quantized(captured("llama"), linear=None, embedding="mxint:width=8")
    mg = passes.insert_lora_adapter_transform_pass(mg, {"rank": 2})[0]
    refused(mg, tmp_path, "q_proj.lora_A: a GGUF llama has no tensor for its weight")


@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", "BF16"), ("float16", "F16")])
@pytest.mark.long
def test_floats_stay_in_the_dtype_of_the_model(dtype, kind, tmp_path):
    model = language_model("qwen2").to(getattr(torch, dtype))
    types = TARGET.write(quantized(model), tmp_path / "model.gguf", None)["tensors"]
    assert types["token_embd.weight"] == kind and types["output.weight"] == "Q8_0"
    assert types["blk.0.attn_q.bias"] == types["blk.0.attn_norm.weight"] == "F32"
    table = weights_in(tmp_path / "model.gguf")["token_embd.weight"]
    assert np.array_equal(table, model.model.embed_tokens.weight.detach().float().numpy())


@pytest.fixture(scope="module")
def with_zeros():
    """The graph of a model with blocks of zeros."""
    model = language_model("llama")
    with torch.no_grad():
        model.lm_head.weight[3:5] = 0.0
        model.model.layers[0].mlp.down_proj.weight[:, 32:64] = 0.0
    return MaseGraph(model)


@pytest.mark.long
@pytest.mark.parametrize("fmt", ["mxint:width=8", "mxint:width=4", "mxfp:width=4"])
def test_blocks_of_zeros_have_any_scale(fmt, with_zeros, tmp_path):
    check(quantized(with_zeros, fmt), tmp_path / "model.gguf")


ROPES = [
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
        "rope_theta": 5000.0,
    },
]


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"])
@pytest.mark.long
def test_scaled_rotary_embeddings_are_written(rope, tmp_path):
    model = language_model("llama", rope_parameters=rope)
    types = check(quantized(model), tmp_path / "model.gguf")["tensors"]
    assert ("rope_freqs.weight" in types) == (rope["rope_type"] == "llama3")
    divisors = frequency_divisors(model.config)
    if divisors is not None:
        found = 5000.0 ** (-torch.arange(0, 16, 2) / 16) / divisors
        torch.testing.assert_close(found, model.model.rotary_emb.inv_freq)
        assert divisors.unique().numel() > 2


@pytest.mark.long
def test_lowest_values_that_move_are_told(tmp_path):
    mg = quantized(captured("llama"), "group_affine:width=4:group_size=32")
    info = TARGET.write(mg, tmp_path / "model.gguf")
    assert info["tensors"]["output.weight"] == "Q4_1"
    assert re.search(
        r"rounded to float16, which changes weights by up to \de-0[45]", info["notes"][1]
    )
    with torch.no_grad():
        found = read_model(tmp_path / "model.gguf")(IDS).logits
    torch.testing.assert_close(found, decoded_logits(mg), atol=5e-3, rtol=0)


def test_nvfp4_answers_in_transformers(tmp_path):
    """Which reads no scales of tensors, and stops at those of a Llama's queries."""
    rules = {path: weight_in("nvfp4") for path in ("lm_head", "model.layers.0.self_attn.q_proj")}
    mg = passes.quantize_transform_pass(captured("llama"), {"by": "name", **rules})[0]
    types = TARGET.write(mg, tmp_path / "model.gguf")["tensors"]
    assert types["output.weight"] == types["blk.0.attn_q.weight"] == "NVFP4"
    assert types["output.scale"] == types["blk.0.attn_q.scale"] == "F32"
    with torch.no_grad():
        found = read_model(tmp_path / "model.gguf")(IDS).logits
    torch.testing.assert_close(found, decoded_logits(mg), atol=1e-6, rtol=1e-6)
    read, own = packed_layers(load_model(tmp_path)), packed_layers(packed_model(mg, "test")[0])
    assert {*read} == {*own} == {*rules}
    for path, layer in own.items():
        assert read[path].spec.weight == layer.spec.weight
        assert torch.equal(read[path].weight, layer.weight)


@pytest.mark.long
def test_tensor_scales_that_llama_cpp_ignores_are_refused(tmp_path):
    mg = captured("exaone4", intermediate_size=128)
    paths = ("model.layers.0.mlp.up_proj", "model.layers.0.self_attn.o_proj")
    rules = {path: weight_in("nvfp4") for path in paths}
    mg = passes.quantize_transform_pass(mg, {"by": "name", **rules})[0]
    refused(mg, tmp_path, "1 module:.*mlp.up_proj: llama.cpp ignores tensor scales of the MLP")


def test_types_that_an_older_library_lacks_are_refused(monkeypatch, tmp_path):
    mg = passes.quantize_transform_pass(
        captured("llama"), {"by": "name", "lm_head": weight_in("nvfp4")}
    )[0]
    members = {x.name: x.value for x in gguf.GGMLQuantizationType if x.name != "NVFP4"}
    monkeypatch.setattr(gguf, "GGMLQuantizationType", enum.IntEnum("Older", members))
    refused(mg, tmp_path, "lm_head: NVFP4 needs gguf 0.19 or newer")


def refused(mg, folder, match, tokenizer=None):
    """Nothing is written, and what was there stays."""
    path = folder / "model.gguf"
    path.write_text("older")
    with pytest.raises(ConfigError, match=f"(?s){match}"):
        TARGET.write(mg, path, tokenizer)
    assert path.read_text() == "older" and [*folder.iterdir()] == [path]
