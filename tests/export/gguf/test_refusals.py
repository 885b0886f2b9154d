"""Formats, settings and modules that GGUF files cannot express, and their refusals."""

import re

import pytest
import torch
import transformers

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.export.gguf.architectures import ARCHITECTURES
from chop.export.gguf.config import check_architecture
from chop.formats import parse_format_string
from tests.export.gguf.test_target import (
    ROPES,
    VOCABULARY,
    YARN,
    captured,
    language_model,
    quantized,
    refused,
    weight_in,
)

pytest.importorskip("gguf", reason="GGUF files are written by gguf: pip install gguf")

REFUSED = {
    "group_affine:width=8": "q_proj: its format has 8 bits with zero points",
    "nvfp4": "down_proj: its rows have 96 values, which is not a multiple of 64",
    "nvfp4:block_size=8": "groups of 8 values, which is not a multiple of 16",
    "mxint:width=8:block_size=16": "groups of 16 values, which is not a multiple of 32",
    "mxfp:width=8": "no GGUF type has its elements Minifloat",
    "mxint:width=12": "codes of 12 bits",
}


@pytest.mark.parametrize("fmt", REFUSED)
@pytest.mark.sampled(1)
def test_formats_are_refused_by_module(fmt, tmp_path):
    mg = quantized(captured("llama"), fmt)
    refused(mg, tmp_path, f"gguf cannot store [18] module.*{REFUSED[fmt]}.*mxint:width=8")


@pytest.mark.long  # four models are captured
def test_rows_scales_and_inputs_are_refused_by_module(tmp_path):
    mg = quantized(captured("llama", intermediate_size=80))
    refused(mg, tmp_path, "1 module:.*layers.0.mlp.down_proj: its rows have 80 values.*multiple")
    model = language_model("llama")
    with torch.no_grad():
        model.lm_head.weight[1] *= 2.0**-30
    refused(quantized(model), tmp_path, "lm_head: 2 of its 576 scales are not float16 numbers")
    mg = passes.pack_transform_pass(quantized(model, "mxfp:width=4"), {"silent": True})[0]
    mg.to_module().lm_head.weight_scales[7] = 255
    refused(mg, tmp_path, "lm_head: 1 of its 576 scales are NaN")
    rules = weight_in("mxint:width=8")
    rules["config"]["data_in"] = parse_format_string("8.4")
    mg = passes.quantize_transform_pass(captured("llama"), {"by": "name", "lm_head": rules})[0]
    refused(mg, tmp_path, "1 module:.*lm_head: it rounds its inputs to integer 8.4")


UNLIKE = [
    ("llama", {"hidden_act": "gelu"}, "llama with hidden_act='silu', got 'gelu'"),
    ("llama", {"rope_parameters": {**YARN, "beta_fast": 8.0}}, "default settings, got beta_fast=8"),
    ("smollm3", {"no_rope_layers": [1, 1, 1, 1]}, r"no_rope_layers=\[1, 1, 1, 0\]"),
    ("smollm3", {"attention_bias": True}, "attention_bias=False, got True"),
    ("olmo2", {"head_dim": 32}, "head_dim=16, got 32"),
    ("gemma", {"use_bidirectional_attention": True}, "bidirectional_attention=None, got True"),
    ("phi", {"qk_layernorm": True}, "qk_layernorm=False, got True"),
    ("exaone4", {"sliding_window": 8}, "sliding_window=None, got 8"),
    ("mistral", {"sliding_window": 16}, r"16 positions\. Set max_position_embeddings"),
    ("gemma2", {"query_pre_attn_scalar": 64}, "query_pre_attn_scalar=32, got 64"),
    ("gemma2", {"attn_logit_softcapping": None}, "softcapping of a gemma2 must not"),
    ("gemma2", {"layer_types": ["full_attention"] * 2}, "layer_types="),
    ("gemma3", {"use_bidirectional_attention": True}, "bidirectional_attention=False, got True"),
    ("phi3", {"sliding_window": 16}, "sliding window of a phi3, which has 16 positions"),
    ("stablelm", {"qk_layernorm": True}, "qk_layernorm=False, got True"),
    ("starcoder2", {"use_bias": False}, "use_bias=True, got False"),
    ("nemotron", {"hidden_act": "relu"}, "hidden_act='relu2', got 'relu'"),
    ("qwen2", {"rope_parameters": ROPES[1]}, "default or linear or yarn, got rope_type 'llama3'"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx=False, got True"),
]


@pytest.mark.parametrize(("kind", "changes", "match"), UNLIKE)
def test_models_that_engines_run_otherwise_are_refused(kind, changes, match):
    with pytest.raises(ConfigError, match=match):
        check_architecture(language_model(kind, **changes).config)


LACKING = {
    "opt": "the gguf library has no table of tensors for the model_type 'opt'",
    "bloom": "the settings of a 'bloom' have no known keys in the architecture 'bloom' of GGUF",
    "gpt_neox": "the settings of a 'gpt_neox' have no known keys in the architecture 'gptneox'",
    "mixtral": "a mixtral is not supported, because transformers reads such a file as a model",
}


@pytest.mark.parametrize("kind", LACKING)
def test_refusals_name_no_other_architecture(kind):
    with pytest.raises(ConfigError, match=LACKING[kind]) as refusal:
        check_architecture(transformers.CONFIG_MAPPING[kind]())
    names = set(re.findall(r"[\w-]+", str(refusal.value)))
    assert not names & {*ARCHITECTURES}


def test_the_architecture_is_refused_before_a_float_model(tmp_path):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = transformers.BertConfig(**sizes, vocab_size=16, intermediate_size=8)
    mg = MaseGraph(transformers.BertForSequenceClassification(config).eval())
    refused(mg, tmp_path, "have no known keys in the architecture 'bert'")


@pytest.mark.long
def test_a_bias_of_the_head_is_refused(tmp_path):
    model = language_model("llama")
    model.lm_head = torch.nn.Linear(64, VOCABULARY)
    refused(quantized(model), tmp_path, "lm_head: a GGUF llama has no tensor for its bias")


@pytest.mark.long  # two models are captured
def test_what_engines_expect_is_refused_where_it_is_not_there(tmp_path):
    model = language_model("qwen2")
    model.model.layers[0].self_attn.q_proj = torch.nn.Linear(64, 64, bias=False)
    refused(quantized(model), tmp_path, "q_proj: a GGUF qwen2 requires its bias, which the model")
    head = {"by": "name", "lm_head": weight_in("mxint:width=8")}
    gemma = passes.quantize_transform_pass(captured("gemma2"), head)[0]
    refused(gemma, tmp_path, "lm_head: engines use the embedding of a gemma2")


@pytest.mark.long
def test_nothing_is_written_of_such_a_model(tmp_path):
    kind, changes, match = UNLIKE[0]
    refused(quantized(captured(kind, **changes)), tmp_path, match)


@pytest.mark.long
def test_a_model_without_a_head_is_refused(tmp_path):
    refused(quantized(language_model("llama").model), tmp_path, "with a head, got a LlamaModel")
