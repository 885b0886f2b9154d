"""Small mixtures of experts of transformers, without a hub."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

from chop.captured.layers.experts import FusedExperts, matrices_by_parameter
from chop.private.modules import own_children

TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": False,
}
_EIGHT = {"num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 24}
MIXTURES: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 4},
    "Olmoe": {**_EIGHT, "eos_token_id": 1},
    "Qwen2Moe": {**_EIGHT, "shared_expert_intermediate_size": 16},
    "Qwen3Moe": _EIGHT,
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "DeepseekV3": {
        "num_local_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 0,
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
}
"""Settings by the name of the model."""


def mixture(name: str, **settings: Any) -> Any:
    """A language model whose tokens go to different experts, in evaluation.

    Args:
        name: see `MIXTURES`.
        settings: of its configuration, which replace the usual ones.
    """
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**TEXT, **MIXTURES[name], **settings})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.2
    return model


def text(rows: int = 2, length: int = 7) -> torch.Tensor:
    """Token ids, (rows, length)."""
    return torch.randint(2, 60, (rows, length), generator=torch.Generator().manual_seed(1))


def fused_in(model: nn.Module) -> dict[str, nn.Module]:
    """By path, the fused experts of a model."""
    return {path: x for path, x in model.named_modules() if matrices_by_parameter(x)}


def with_layers(model: Any) -> Any:
    """The model, changed: with layers in the place of its fused experts."""
    for path, module in fused_in(model).items():
        owner, _, name = path.rpartition(".")
        own_children(model.get_submodule(owner))[name] = FusedExperts.around(module, {})
    return model
