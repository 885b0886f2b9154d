"""GGUF architectures: supported model types, and the settings that engines assume for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from chop.errors import CheckpointError

ROOT_EPSILON = "attention.layer_norm_rms_epsilon"
EPSILON = "attention.layer_norm_epsilon"
HEAD = {"head_dim": "attention.key_length"}
VOCABULARY = {"vocab_size": "vocab_size"}
EXPERT_COUNT = "expert_count"
EXPERTS = {"moe_intermediate_size": "expert_feed_forward_length"}
SHARED = {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"}
FEED_FORWARD, LFM2_HEADS = "feed_forward_length", "num_key_value_heads"
SIZES = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": FEED_FORWARD,
    "num_attention_heads": "attention.head_count",
    LFM2_HEADS: "attention.head_count_kv",
    **VOCABULARY,
}
DECODER = {**SIZES, "rms_norm_eps": ROOT_EPSILON}
MIXTURE = {
    **DECODER,
    **EXPERTS,
    "num_experts": EXPERT_COUNT,
    "num_experts_per_tok": "expert_used_count",
}
GPT2 = {
    "n_positions": "context_length",
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "layer_norm_epsilon": EPSILON,
    **VOCABULARY,
}
GRANITE = {
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
}
WINDOW = {"sliding_window": "attention.sliding_window"}
FINAL_CAP = {"final_logit_softcapping": "final_logit_softcapping"}
CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", **FINAL_CAP}
GEMMA_LAYERS = {"gemma2": (46, 2), "gemma3": (62, 6)}
"""Number of layers by which llama.cpp recognizes 27B models, and the period of global attention."""
EXAONE4_LAYERS = 64
"""Number of layers by which llama.cpp recognizes 32B models."""


@dataclass(frozen=True)
class Architecture:
    """GGUF form of a model type.

    Attributes:
        name: architecture name in GGUF.
        keys: GGUF key, after the architecture's name, by configuration attribute.
        expected: values that engines always assume, by attribute.
        computed: functions of the configuration with the values that engines derive, by attribute.
        derived: functions of the configuration with the values of further keys, by key; a list has
            one number per layer.
        parse: inverse of `derived`: values of all keys, after the architecture's name -> settings.
        required: attributes that must not be None.
        permutes: rows of query and key projections are reordered: the two halves that a rotary
            embedding rotates are interleaved.
        rope_types: supported rotary embeddings; empty for models without.
        turns_part: rotary embeddings may rotate a part of a head.
        has_local_rope: sliding-window layers have their own rotary embedding.
        unread: keys that transformers does not read from a file, by attribute.
        inferred_from: tensors whose presence determines an attribute, by attribute.
        has_window: engines have no sliding window, but the configuration's one is always active.
        adds_one: norms are stored as their factor, the weight plus 1.
        is_tied: the head is the embedding and never stored.
        is_read: transformers reads such files; chop reads the others itself.
        has_mlp_scales: llama.cpp multiplies by tensor scales of the MLP, too.
        has_head: the head is stored even if it is the embedding.
    """

    name: str
    keys: Mapping[str, str]
    expected: Mapping[str, Any]
    computed: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    derived: Mapping[str, Callable[[Any], int | list[int]]] = field(default_factory=dict)
    parse: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda values: {}
    required: tuple[str, ...] = ()
    permutes: bool = False
    rope_types: tuple[str, ...] = ("default", "linear", "yarn")
    turns_part: bool = False
    has_local_rope: bool = False
    unread: Mapping[str, str] = field(default_factory=dict)
    inferred_from: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    has_window: bool = False
    adds_one: bool = False
    is_tied: bool = False
    is_read: bool = True
    has_mlp_scales: bool = False
    has_head: bool = False

    @property
    def has_experts(self) -> bool:
        """True for mixtures of experts."""
        return EXPERT_COUNT in self.keys.values()


def head_size(config: Any) -> int:
    """Returns the size of an attention head."""
    given = getattr(config, "head_dim", None)
    return int(given or config.hidden_size // config.num_attention_heads)


def _whole_heads(config: Any) -> int | None:
    """Returns the head size of architectures with square projections, None if it is not stated."""
    stated = getattr(config, "head_dim", None)
    return None if stated is None else int(config.hidden_size // config.num_attention_heads)


def _score_size(name: str, config: Any) -> int:
    """Returns the number under the square root that scales a Gemma's attention scores."""
    if config.num_hidden_layers == GEMMA_LAYERS[name][0]:
        return int(config.hidden_size // config.num_attention_heads)
    return head_size(config)


def _layer_types(name: str, config: Any) -> list[str]:
    """Returns a Gemma's layer types, in which the last layer of each period attends globally."""
    return _periodic(config, GEMMA_LAYERS[name][1])


def _periodic(config: Any, period: int) -> list[str]:
    numbers = range(1, config.num_hidden_layers + 1)
    return ["sliding_attention" if x % period else "full_attention" for x in numbers]


def _gemma(name: str) -> Mapping[str, Callable[[Any], Any]]:
    return {
        "query_pre_attn_scalar": partial(_score_size, name),
        "layer_types": partial(_layer_types, name),
    }


def _exaone4_window(config: Any) -> int | None:
    """Returns the sliding window of an EXAONE 4; only 32B models, of 64 layers, have one."""
    window: int | None = config.sliding_window
    return window if config.num_hidden_layers == EXAONE4_LAYERS else None


def _exaone4_layer_types(config: Any) -> list[str]:
    is_large = config.num_hidden_layers == EXAONE4_LAYERS
    return _periodic(config, 4) if is_large else ["full_attention"] * config.num_hidden_layers


def _rotates(config: Any) -> list[int]:
    """Returns 1 for each layer of a SmolLM3 with rotary embeddings: every fourth has none."""
    return [int(number % 4 != 0) for number in range(1, config.num_hidden_layers + 1)]


def _gpt2_width(config: Any) -> int:
    """Returns the hidden size of a GPT-2's MLP."""
    return int(config.n_inner or 4 * config.n_embd)


def _lfm2_width(config: Any) -> int:
    """Returns the hidden size of an LFM2's MLP, adjusted as in transformers' `Lfm2MLP`."""
    size = int(config.intermediate_size)
    if not config.block_auto_adjust_ff_dim:
        return size
    size = int(2 * size / 3)
    if config.block_ffn_dim_multiplier is None:
        return size
    step = int(config.block_multiple_of)
    return -(-int(config.block_ffn_dim_multiplier * size) // step) * step


def _lfm2_heads(config: Any) -> list[int]:
    """Returns the key-value heads of each layer of an LFM2; layers with a convolution have 0."""
    heads = int(config.num_key_value_heads)
    return [heads if kind == "full_attention" else 0 for kind in config.layer_types]


def _read_lfm2(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of an LFM2's layers.

    Raises:
        CheckpointError: if there is not one number of key-value heads per layer.
    """
    heads: Any = values.get(SIZES[LFM2_HEADS])
    count = values.get("block_count")
    is_list = isinstance(heads, list) and all(type(x) is int for x in heads)
    if not is_list or len(heads) != count or max(heads, default=0) < 1:
        raise CheckpointError(
            f"lfm2.{SIZES[LFM2_HEADS]}: expected a number for each of {count!r:.20} layers, at "
            f"least one of them positive, got {heads!r:.80}."
        )
    return {
        LFM2_HEADS: max(heads),
        "layer_types": ["full_attention" if x else "conv" for x in heads],
        "intermediate_size": values.get(FEED_FORWARD),
        "block_auto_adjust_ff_dim": False,
    }


SQUARE = {"head_dim": _whole_heads}
SILU = {"hidden_act": "silu"}
QUERY_BIAS = {"attention_bias": ("blk.0.attn_q.bias", True)}
BIASES = QUERY_BIAS | {"mlp_bias": ("blk.0.ffn_up.bias", True)}
NO_BIASES = {"attention_bias": False, "mlp_bias": False}
ALL_EXPERTS = {"decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False}
"""Settings of models with a mixture of experts in each layer."""
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}
LLAMA_ROPE = ("default", "linear", "yarn", "llama3")
# llama.cpp runs a Mistral as a Llama, which has no window, nor have those of Phi3 and Starcoder2.
ARCHITECTURES = {
    "llama": Architecture(
        "llama",
        DECODER,
        SILU,
        permutes=True,
        rope_types=LLAMA_ROPE,
        inferred_from=BIASES,
        has_mlp_scales=True,
    ),
    "mistral": Architecture(
        "llama",
        DECODER,
        SILU,
        permutes=True,
        rope_types=LLAMA_ROPE,
        has_window=True,
        has_mlp_scales=True,
    ),
    "qwen2": Architecture("qwen2", DECODER, SILU | {"use_sliding_window": False}),
    "qwen3": Architecture(
        "qwen3",
        DECODER,
        SILU | {"use_sliding_window": False, "attention_bias": False},
        unread=HEAD,
        has_mlp_scales=True,
    ),
    "qwen2_moe": Architecture(
        "qwen2moe",
        MIXTURE | SHARED,
        SILU | ALL_EXPERTS | {"norm_topk_prob": False, "qkv_bias": True},
        unread=EXPERTS | SHARED,
    ),
    "qwen3_moe": Architecture(
        "qwen3moe",
        MIXTURE,
        SILU | ALL_EXPERTS | {"norm_topk_prob": True, "attention_bias": False},
        unread=HEAD | EXPERTS,
    ),
    "phi3": Architecture("phi3", DECODER, SILU, turns_part=True, unread=HEAD, has_window=True),
    "gemma2": Architecture(
        "gemma2",
        DECODER | WINDOW | CAPS,
        GEMMA,
        _gemma("gemma2"),
        required=("sliding_window", *CAPS),
        rope_types=("default",),
        unread=CAPS,
        adds_one=True,
        is_tied=True,
    ),
    "gemma3_text": Architecture(
        "gemma3",
        DECODER | WINDOW | FINAL_CAP,
        GEMMA | {"attn_logit_softcapping": None, "use_bidirectional_attention": False},
        _gemma("gemma3"),
        required=("sliding_window",),
        has_local_rope=True,
        unread=FINAL_CAP,
        adds_one=True,
    ),
    "stablelm": Architecture(
        "stablelm",
        {**SIZES, "layer_norm_eps": EPSILON, "use_parallel_residual": "use_parallel_residual"},
        SILU | {"qk_layernorm": False},
        rope_types=("default",),
        turns_part=True,
        inferred_from={
            "use_qkv_bias": ("blk.0.attn_q.bias", True),
            "use_parallel_residual": ("blk.0.ffn_norm.weight", False),
        },
        has_head=True,
    ),
    "starcoder2": Architecture(
        "starcoder2",
        {**SIZES, "norm_epsilon": EPSILON},
        {"hidden_act": "gelu_pytorch_tanh", "use_bias": True},
        unread=HEAD | VOCABULARY,
        has_window=True,
    ),
    "nemotron": Architecture(
        "nemotron",
        {**SIZES, "norm_eps": EPSILON},
        {"hidden_act": "relu2"} | NO_BIASES,
        turns_part=True,
        unread=HEAD | {"norm_eps": EPSILON},
        adds_one=True,
        has_head=True,
    ),
    "smollm3": Architecture(
        "smollm3",
        DECODER,
        SILU | NO_BIASES | {"use_sliding_window": False},
        {"no_rope_layers": _rotates},
        permutes=True,
        is_read=False,
    ),
    "granite": Architecture(
        "granite",
        DECODER | GRANITE,
        SILU,
        permutes=True,
        inferred_from=BIASES,
        is_read=False,
    ),
    "olmo2": Architecture(
        "olmo2", DECODER, SILU | {"attention_bias": False}, SQUARE, is_read=False
    ),
    "gemma": Architecture(
        "gemma",
        DECODER,
        {
            "hidden_act": "gelu_pytorch_tanh",
            "attention_bias": False,
            "use_bidirectional_attention": None,
        },
        adds_one=True,
        is_tied=True,
        is_read=False,
    ),
    "phi": Architecture(
        "phi2",
        {**SIZES, "layer_norm_eps": EPSILON},
        {"hidden_act": "gelu_new", "qk_layernorm": False},
        SQUARE,
        turns_part=True,
        has_head=True,
        is_read=False,
    ),
    "exaone": Architecture(
        "exaone",
        DECODER,
        SILU | NO_BIASES,
        rope_types=LLAMA_ROPE,
        is_read=False,
    ),
    "exaone4": Architecture(
        "exaone4",
        DECODER | WINDOW,
        SILU,
        {"layer_types": _exaone4_layer_types, "sliding_window": _exaone4_window, **SQUARE},
        rope_types=LLAMA_ROPE,
        is_read=False,
    ),
    "glm4": Architecture(
        "glm4", DECODER, SILU, turns_part=True, inferred_from=QUERY_BIAS, is_read=False
    ),
    "lfm2": Architecture(
        "lfm2",
        {x: key for x, key in SIZES.items() if x not in ("intermediate_size", LFM2_HEADS)}
        | {"norm_eps": ROOT_EPSILON, "conv_L_cache": "shortconv.l_cache"},
        {"conv_bias": False},
        {"head_dim": lambda config: config.hidden_size // config.num_attention_heads},
        {FEED_FORWARD: _lfm2_width, SIZES[LFM2_HEADS]: _lfm2_heads},
        _read_lfm2,
        rope_types=("default",),
        is_read=False,
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
        derived={FEED_FORWARD: _gpt2_width},
        rope_types=(),
        unread={
            "n_positions": "context_length",
            "n_inner": FEED_FORWARD,
            **VOCABULARY,
        },
    ),
}
"""Architectures by `model_type` of a configuration."""
UNREAD = {
    "mixtral": "reads such a file as a model without experts",
    "olmoe": "does not support olmoe in GGUF",
    "gpt_oss": "looks for experts of gpt-oss by names that no model has",
}
"""Behavior of transformers for files of other mixtures of experts, by `model_type`."""
