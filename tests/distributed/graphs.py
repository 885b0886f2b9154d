"""Small graphs of six architectures, captured once per process of the tests."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from chop import MaseGraph, passes

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**SIZES, "intermediate_size": 64, "vocab_size": 99, "max_position_embeddings": 64}
MODELS: dict[str, Callable[[Any], nn.Module]] = {
    "bert": lambda t: t.BertForSequenceClassification(
        t.BertConfig(**TEXT, initializer_range=0.3),
    ),
    "roberta": lambda t: t.RobertaForSequenceClassification(
        t.RobertaConfig(**TEXT, initializer_range=0.3, pad_token_id=1),
    ),
    "gpt2": lambda t: t.GPT2LMHeadModel(
        t.GPT2Config(
            n_embd=32,
            n_layer=2,
            n_head=4,
            vocab_size=99,
            n_positions=64,
            initializer_range=0.3,
            use_cache=False,
        )
    ),
    "opt": lambda t: t.OPTForCausalLM(
        t.OPTConfig(
            ffn_dim=64,
            word_embed_proj_dim=32,
            **{k: v for k, v in TEXT.items() if k != "intermediate_size"},
            init_std=0.3,
            use_cache=False,
        )
    ),
    "llama": lambda t: t.LlamaForCausalLM(
        t.LlamaConfig(**TEXT, num_key_value_heads=4, initializer_range=0.3, use_cache=False)
    ),
    "vit": lambda t: t.ViTForImageClassification(
        t.ViTConfig(
            **SIZES, intermediate_size=64, image_size=16, patch_size=4, initializer_range=0.3
        )
    ),
}


def list_inputs(name: str, batch: int, length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(batch * 100 + length)
    if name.startswith("vit"):
        return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=generator)}
    ids = torch.randint(3, 99, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, length // 2 + 1 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


@functools.cache
def graph_of(name: str) -> MaseGraph:
    """A graph with random weights, large enough to tell outputs apart; not to be changed."""
    import transformers

    torch.manual_seed(0)
    model = MODELS[name](transformers).eval()
    return MaseGraph(model, hf_input_names=list(list_inputs(name, 3, 7)))


def quantized(name: str, number_format: dict[str, Any]) -> MaseGraph:
    """Every operator that can be quantized in one format."""
    mg, _ = passes.add_common_metadata_analysis_pass(graph_of(name).copy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mg, _ = passes.quantize_transform_pass(
            mg, {"by": "type", "default": {"config": number_format}}
        )
    return mg
