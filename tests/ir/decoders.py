"""Small decoders of transformers with random weights."""

from __future__ import annotations

from typing import Any

import torch
import transformers

TINY = {"hidden_size": 16, "intermediate_size": 16, "vocab_size": 50, "initializer_range": 0.3}
"""Sizes of a Llama that is trained in tests."""


def llama(**settings: Any) -> Any:
    """A Llama of one layer with two heads, in evaluation mode."""
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, **settings}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()


def decoder(kind: str, vocabulary: int = 64, **settings: Any) -> Any:
    """A GPT-2, or a Llama with further settings, of width 64."""
    sizes = {"vocab_size": vocabulary, "bos_token_id": 1, "eos_token_id": 2}
    if kind != "gpt2":
        return llama(hidden_size=64, **sizes, **settings)
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=64, n_layer=1, n_head=2, n_positions=32, **sizes)
    return transformers.GPT2LMHeadModel(config).eval()
