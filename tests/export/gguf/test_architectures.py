"""Tensor names and keys of each architecture: those of gguf's tables, and read back."""

import re
from pathlib import Path

import pytest
import torch
import transformers

from chop.errors import CheckpointError, ConfigError
from chop.export.foreign.loading import without_data
from chop.export.gguf.architectures import ARCHITECTURES
from chop.export.gguf.config import (
    check_architecture,
    node_metadata,
    stated_config,
    unread_settings,
)
from chop.export.gguf.names import named_parameters
from chop.export.gguf.rope import ROPE_KEY, read_rope
from tests.export.gguf.test_target import CASES, NEW, OF_KIND, SIZES, YARN

gguf = pytest.importorskip("gguf", reason="GGUF files are written by gguf: pip install gguf")

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "export-gguf.md"
MIXTURES = ("qwen2_moe", "qwen3_moe")
ONES = [
    *((kind if kind != "gemma3" else "gemma3_text", changes) for kind, changes in CASES + NEW),
    *((kind, {"norm_topk_prob": kind == "qwen3_moe"}) for kind in MIXTURES),
]


def config_of(kind, changes):
    if kind == "gpt2":
        names = {"n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 48, "vocab_size": 288}
        return transformers.GPT2Config(**names, **changes)
    sizes = {**SIZES, "tie_word_embeddings": False, "num_key_value_heads": 2}
    of_kind = OF_KIND.get(kind.removesuffix("_text"), {})
    return transformers.CONFIG_MAPPING[kind](**sizes | of_kind | changes)


def keys_of(section):
    return {x for x in vars(section).values() if isinstance(x, str) and x.startswith("{arch}.")}


@pytest.mark.parametrize(("kind", "changes"), ONES)
def test_names_and_keys_are_those_of_the_library(kind, changes):
    config = config_of(kind, changes)
    architecture = check_architecture(config)
    arch = next(key for key, x in gguf.MODEL_ARCH_NAMES.items() if x == architecture.name)
    model = without_data(transformers.AutoModelForCausalLM, config)
    tied, parameters = model.get_output_embeddings(), [*named_parameters(model, architecture)]
    assert {x.key for x in parameters} >= {name for name, _ in model.named_parameters()}
    named = {x.name for x in parameters if x.module is not tied or not architecture.is_tied}
    known = [gguf.TENSOR_NAMES[x] for x in gguf.MODEL_TENSORS[arch]]
    patterns = [x.replace("{bid}", r"\d+") + r"\.(weight|bias)" for x in known]
    assert all(any(re.fullmatch(x, name) for x in patterns) for name in named)
    sections = (gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.Rope, gguf.Keys.ShortConv)
    keys = {
        x.replace("{arch}", architecture.name) for section in sections for x in keys_of(section)
    }
    assert {*node_metadata(config, architecture)} - {ROPE_KEY} <= keys


@pytest.mark.parametrize(("kind", "changes"), NEW)
def test_a_configuration_is_read_from_its_keys(kind, changes):
    config = config_of(kind, changes)
    architecture = check_architecture(config)
    if architecture.is_read:
        return
    keys = {"general.architecture": architecture.name, **node_metadata(config, architecture)}
    tensors = ["output.weight"] if not config.tie_word_embeddings else []
    model = without_data(transformers.AutoModelForCausalLM, config)
    tensors += [str(x.name) for x in named_parameters(model, architecture)][1:-1]
    found = stated_config(keys, tensors)
    for name, value in unread_settings(found, keys, tensors, "here").items():
        setattr(found, name, value)
    checked = {*architecture.keys, *architecture.expected, *architecture.computed, *changes}
    for name in checked - {"rope_parameters"}:
        value = getattr(found, name, None)
        assert value == getattr(config, name, value), name
    rope, expected = found.rope_parameters, config.rope_parameters
    assert {name: rope[name] for name in expected} == pytest.approx(expected)
    found.pad_token_id = config.pad_token_id  # whose row of an embedding is drawn as 0
    logits = [made(found), made(config)]
    assert torch.equal(*logits)


@pytest.mark.parametrize("change", ["yarn_ext_factor", "yarn_log_multiplier", "finetuned"])
def test_keys_of_other_rotary_embeddings_are_refused(change):
    config = config_of("granite", {"rope_parameters": YARN})
    architecture = check_architecture(config)
    keys = node_metadata(config, architecture)
    assert read_rope(architecture, keys, "here") == {**YARN}
    keys[f"granite.rope.scaling.{change}"] = False if change == "finetuned" else 0.5
    with pytest.raises(ConfigError, match="YaRN scaling .*" + change + "|a granite with rotary"):
        read_rope(architecture, keys, "here")


@pytest.mark.parametrize("key", ["factor", "original_context_length"])
def test_a_scaling_without_its_numbers_is_an_error(key):
    config = config_of("olmo2", {"rope_parameters": YARN})
    architecture = check_architecture(config)
    keys = node_metadata(config, architecture)
    del keys[f"olmo2.rope.scaling.{key}"]
    with pytest.raises(CheckpointError, match=f"positive number in olmo2.rope.scaling.{key}"):
        read_rope(architecture, keys, "here")


@pytest.mark.parametrize("heads", [2, [0], [0, 0], ["0", 2], None])
def test_layers_of_an_lfm2_need_a_number_each(heads):
    config = config_of("lfm2", {})
    architecture = check_architecture(config)
    keys = {"general.architecture": "lfm2", **node_metadata(config, architecture)}
    assert keys["lfm2.attention.head_count_kv"] == [0, 2]
    keys["lfm2.attention.head_count_kv"] = heads
    with pytest.raises(CheckpointError, match="head_count_kv: expected a number for each of 2"):
        stated_config(keys, [])


def made(config):
    """Logits of a model with these settings and drawn weights."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        return model(torch.tensor([[5, 6, 7, 8]])).logits


def test_the_guide_lists_each_architecture():
    rows = re.findall(r"^\| .* \| `(\w+)` \| (yes|no) \|$", GUIDE.read_text(), re.MULTILINE)
    expected = {kind: "yes" if one.is_read else "no" for kind, one in ARCHITECTURES.items()}
    assert dict(rows) == expected
