"""GGUF architectures: the kinds of models that have one, and their configurations as its keys."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError, did_you_mean
from chop.files.documents import parse_json

ROPE_KEY = "chop.rope_parameters"
"""Where a file has the scaled rotary embedding, which transformers does not read from GGUF."""
DECODER = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "vocab_size": "vocab_size",
}
GPT2 = {
    "n_positions": "context_length",
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "vocab_size": "vocab_size",
}


@dataclass(frozen=True)
class Architecture:
    """How a kind of model is written.

    Attributes:
        name: of the architecture in GGUF.
        keys: by attribute of the configuration, the key after the architecture's name.
        expected: what engines compute with, whatever the configuration says, by its attribute.
        permutes: rows of the query and key projections are reordered: the two halves that a rotary
            embedding turns are interleaved.
        rope_types: of rotary embeddings that are written; none for models without.
        unread: keys that transformers does not read from a file, by attribute.
        has_window: the configuration's sliding window is in force wherever it has one.
    """

    name: str
    keys: Mapping[str, str]
    expected: Mapping[str, Any]
    permutes: bool = False
    rope_types: tuple[str, ...] = ("default", "linear")
    unread: Mapping[str, str] = field(default_factory=dict)
    has_window: bool = False


LLAMA_ROPE = ("default", "linear", "llama3")
ARCHITECTURES = {
    "llama": Architecture(
        "llama",
        DECODER,
        {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
        permutes=True,
        rope_types=LLAMA_ROPE,
    ),
    # llama.cpp runs it as a Llama, which has no window.
    "mistral": Architecture(
        "llama", DECODER, {"hidden_act": "silu"}, True, LLAMA_ROPE, has_window=True
    ),
    "qwen2": Architecture("qwen2", DECODER, {"hidden_act": "silu", "use_sliding_window": False}),
    "qwen3": Architecture(
        "qwen3",
        DECODER,
        {"hidden_act": "silu", "use_sliding_window": False, "attention_bias": False},
        unread={"head_dim": "attention.key_length"},
    ),
    "gpt2": Architecture(
        "gpt2",
        GPT2,
        {
            "activation_function": "gelu_new",
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        rope_types=(),
        unread={
            "n_positions": "context_length",
            "n_inner": "feed_forward_length",
            "vocab_size": "vocab_size",
        },
    ),
}
"""By `model_type` of a configuration."""


def architecture_of(config: Any) -> Architecture:
    """The architecture of a model, whose configuration says nothing that a file cannot.

    Args:
        config: of transformers.

    Raises:
        ConfigError: GGUF has none that this project knows, or engines would compute something else.
    """
    kind = config.model_type
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"gguf: expected a model of a known architecture, got model_type '{kind}': "
            f"{did_you_mean(kind, ARCHITECTURES)}"
        )
    found = ARCHITECTURES[kind]
    for attribute, value in found.expected.items():
        given = getattr(config, attribute, value)
        if given != value:
            raise ConfigError(
                f"gguf: engines run a {kind} with {attribute}={value!r}, got {given!r}; "
                "compressed-tensors holds the model as it is."
            )
    window = getattr(config, "sliding_window", None) if found.has_window else None
    if window is not None and window < config.max_position_embeddings:
        raise ConfigError(
            f"gguf: engines run a {kind} without a sliding window, got one of {window} positions; "
            f"set max_position_embeddings to {window}, or sliding_window to None."
        )
    _check_rope(found, config)
    return found


def _check_rope(architecture: Architecture, config: Any) -> None:
    rope = _rope(config)
    kind, share = rope.get("rope_type", "default"), rope.get("partial_rotary_factor", 1.0)
    if architecture.rope_types and (kind not in architecture.rope_types or share != 1):
        what = f"rope_type '{kind}'" if share == 1 else f"partial_rotary_factor {share}"
        raise ConfigError(
            f"gguf: expected rotary embeddings of all of a head, of the types "
            f"{', '.join(architecture.rope_types)}, got {what}; "
            "compressed-tensors holds the model as it is."
        )


def _rope(config: Any) -> Mapping[str, Any]:
    return getattr(config, "rope_parameters", None) or {}


def metadata_of(config: Any, architecture: Architecture) -> dict[str, int | float | str]:
    """A configuration as keys and values of GGUF.

    Args:
        config: of transformers.
        architecture: its own, see `architecture_of`.
    """
    name = architecture.name
    found = {f"{name}.{key}": getattr(config, x) for x, key in architecture.keys.items()}
    if not architecture.rope_types:
        inner = config.n_inner or 4 * config.n_embd
        return found | {f"{name}.feed_forward_length": inner}
    rope, size = _rope(config), head_size(config)
    of_heads = ("rope.dimension_count", "attention.key_length", "attention.value_length")
    found |= {f"{name}.{key}": size for key in of_heads}
    found[f"{name}.rope.freq_base"] = float(rope["rope_theta"])
    if rope.get("rope_type", "default") == "linear":
        found[f"{name}.rope.scaling.type"] = "linear"
        found[f"{name}.rope.scaling.factor"] = float(rope["factor"])
    if rope.get("rope_type", "default") != "default":
        found[ROPE_KEY] = json.dumps(dict(rope))
    return found


def head_size(config: Any) -> int:
    """Values of an attention head."""
    given = getattr(config, "head_dim", None)
    return int(given or config.hidden_size // config.num_attention_heads)


def frequency_divisors(config: Any) -> Tensor | None:
    """What llama.cpp divides the frequencies of a rotary embedding by, float32 (head size / 2).

    Args:
        config: of transformers.
    Returns: None where it divides all of them by the same.

    Source: Llama 3.1's scaling, as transformers computes rope_type "llama3".
    """
    rope = _rope(config)
    if rope.get("rope_type") != "llama3":
        return None
    size, factor, low = head_size(config), rope["factor"], rope["low_freq_factor"]
    exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
    wavelengths = 2 * math.pi * rope["rope_theta"] ** exponents
    turns = rope["original_max_position_embeddings"] / wavelengths
    share = ((turns - low) / (rope["high_freq_factor"] - low)).clamp(0, 1)
    divisors: Tensor = 1 / ((1 - share) / factor + share)
    return divisors.float()


def unread_settings(config: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of a configuration and transformers does not read.

    Args:
        config: as transformers read it.
        metadata: the values of the file by key.
    Returns: By attribute.
    """
    known = ARCHITECTURES.get(config.model_type)
    if known is None:
        return {}
    keys = {name: f"{known.name}.{key}" for name, key in known.unread.items()}
    found = {name: metadata[key] for name, key in keys.items() if key in metadata}
    if ROPE_KEY in metadata:
        found["rope_parameters"] = parse_json(str(metadata[ROPE_KEY]))
    return found
