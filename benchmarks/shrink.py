"""Turns the default configuration of any transformers architecture into a tiny one."""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

Rules = list[tuple[str, Any]]

WIDTH, HEADS, LAYERS, VOCABULARY, POSITIONS = 32, 4, 2, 128, 64

# The first pattern that matches a setting's whole name decides.
RULES: Rules = [
    (r"(num_|n_)?(hidden_)?layers?|n_layer|depth|.*num_hidden_layers|.*_layers|num_blocks", LAYERS),
    (r".*(key_value_heads|kv_heads)", 2),
    (r".*(num_attention_heads|attention_heads|num_heads|n_heads?|_heads)|n_head", HEADS),
    (r"head_dim|d_kv|.*_head_dim|d_head|kv_channels|attention_head_size", WIDTH // HEADS),
    (r".*(intermediate_size|ffn_dim|inner_dim|mlp_dim|d_ff|n_inner|d_inner)", 2 * WIDTH),
    (r"(hidden_size|d_model|n_embd|embed_dim|dim|emb_dim|d_embed|embedding_size)", WIDTH),
    (r".*(hidden_size|hidden_dim|embed_dim|_dim_model|embedding_dim|hidden_channels)", WIDTH),
    (
        r"(decoder_|out_|output_|projection_|proj_|text_|vision_|num_)?(proj|output|latent)_dim",
        WIDTH,
    ),
    (r"projection_dim|backbone_channels|encoder_hidden|decoder_hidden|fusion_hidden_size", WIDTH),
    (r".*vocab_size.*", VOCABULARY),
    (
        r".*(max_position_embeddings|max_source_positions|max_target_positions|n_positions)",
        POSITIONS,
    ),
    (r"rotary_dim", WIDTH // HEADS),
    (r"n_ctx|max_seq_len|max_sequence_length|max_2d_position_embeddings|sliding_window", POSITIONS),
    (r"image_size|input_size|crop_size|img_size", 32),
    (r"patch_size", 8),
    (r"num_experts|n_routed_experts|num_local_experts|moe_num_experts", 4),
    (r"num_experts_per_tok|top_k|moe_topk|moe_k", 2),
    (r"(n_group|topk_group|n_shared_experts|first_k_dense_replace)", 1),
    (r"q_lora_rank|kv_lora_rank|qk_nope_head_dim|qk_rope_head_dim|v_head_dim", 8),
    (r"num_mel_bins|feature_size|input_feat_per_channel", 16),
    (r"num_queries|num_query_tokens|num_proposals", 6),
    (r"state_size|ssm_state_size|mamba_d_state|time_step_rank", 8),
    (r"layerdrop|.*_layerdrop|layer_drop|mask_time_prob|mask_feature_prob", 0.0),
    (r"apply_spec_augment|use_cache|use_pretrained_backbone|use_timm_backbone", False),
]

LAYERS_ONLY: Rules = [RULES[0], *(rule for rule in RULES if rule[1] in (0.0, VOCABULARY, False))]

# Some attentions have as many key heads as query heads, whatever their configuration allows.
EQUAL_HEADS: Rules = [(".*(key_value_heads|kv_heads)", HEADS), *RULES]

_SAM_HEADS = {
    "prompt_encoder_config": {"hidden_size": WIDTH, "image_size": 64, "patch_size": 16},
    "mask_decoder_config": {
        "hidden_size": WIDTH,
        "mlp_dim": 2 * WIDTH,
        "num_attention_heads": HEADS,
        "iou_head_hidden_dim": WIDTH,
        "vit_dim": WIDTH,
    },
}
_SAM_VISION = {
    "hidden_size": WIDTH,
    "output_channels": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "image_size": 64,
    "patch_size": 16,
    "window_size": 2,
    "global_attn_indexes": [1],
    "num_pos_feats": WIDTH // 2,
    "mlp_dim": 2 * WIDTH,
}
_HIERA = {
    "hidden_size": 16,
    "image_size": [64, 64],
    "blocks_per_stage": [1, 1, 2, 1],
    "embed_dim_per_stage": [16, 32, 64, 128],
    "window_size_per_stage": [4, 2, 2, 1],
    "window_positional_embedding_background_size": [2, 2],
    "global_attention_blocks": [3],
}
_SAM2_VISION = {
    "backbone_config": {"model_type": "sam2_hiera_det_model", **_HIERA},
    "backbone_channel_list": [128, 64, 32, 16],
    "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    "fpn_hidden_size": WIDTH,
}

# Settings that obey a relation between nested configurations; the rules alone leave these models
# with images of 1024 x 1024 or with their full width.
KNOWN: Mapping[str, dict[str, Any]] = {
    "sam": {"vision_config": _SAM_VISION, **_SAM_HEADS},
    "sam_hq": {"vision_config": _SAM_VISION, **_SAM_HEADS},
    "sam2": {"vision_config": {"model_type": "sam2_vision_model", **_SAM2_VISION}, **_SAM_HEADS},
    "sam2_vision_model": _SAM2_VISION,
    "sam2_hiera_det_model": _HIERA,
    "swin2sr": {
        "embed_dim": 24,
        "depths": [1, 2],
        "num_heads": [2, 4],
        "image_size": 16,
        "window_size": 4,
    },
}

# With fewer key heads these run as long as nothing is masked, and fail in eager mode otherwise.
FAIL_ONCE_MASKED = frozenset({"nemotron3_5_transcribe_audio"})

_DEPTHS = re.compile(r"depths|num_layers|layers|.*_depths|num_blocks|.*_layers")
_KEPT_LISTS = re.compile(
    r".*(strides?|kernel.*|patch.*|padding.*|ratios?|rates?|heads?|_ids|size)s?"
)


def variants(config_class: Any) -> Iterator[Any]:
    """Tiny configurations of an architecture, the most promising first.

    Known settings where there are any. Then widths and layers small, by the constructor (which
    derives further settings) or by assignment; then only layers and vocabulary small, where the
    widths obey a relation that is not known here.
    """
    if config_class.model_type in KNOWN:
        with contextlib.suppress(Exception):
            yield config_class(**copy.deepcopy(KNOWN[config_class.model_type]))
    orders: tuple[Rules, ...] = (RULES, EQUAL_HEADS, LAYERS_ONLY)
    if config_class.model_type in FAIL_ONCE_MASKED:
        orders = orders[1:]
    for rules in orders:
        for make in (_by_constructor, _by_assignment):
            with contextlib.suppress(Exception):
                yield make(config_class, rules)


def _by_assignment(config_class: type, rules: Rules) -> Any:
    config = config_class(**_required(config_class))
    _shrink(config, rules)
    return config


def _by_constructor(config_class: type, rules: Rules) -> Any:
    small = _by_assignment(config_class, rules)
    known = inspect.signature(config_class).parameters
    settings = {
        name: value
        for name, value in vars(small).items()
        if name in known and value is not None and name not in ("rope_parameters", "head_dim")
    }
    return config_class(**settings)


def _required(config_class: type) -> dict[str, Any]:
    """Settings without which an architecture has no default configuration."""
    if config_class.__name__.startswith(("Autoformer", "Informer", "TimeSeriesTransformer")):
        return {"prediction_length": 6, "context_length": 12}
    return {}


def _shrink(config: Any, rules: Rules) -> None:
    for name, value in list(vars(config).items()):
        if name.startswith("_"):
            continue
        if hasattr(value, "to_dict"):
            if type(value).__name__ == "TimmBackboneConfig":
                _put(config, name, _small_backbone())
            else:
                _shrink(value, rules)
        elif name.endswith("layer_types") and isinstance(value, list):
            _put(config, name, _few_layer_types(value))
        elif isinstance(value, list | tuple) and value and rules is not LAYERS_ONLY:
            _put(config, name, _shrink_list(name, value))
        elif isinstance(value, int | float | None.__class__):
            _apply(config, name, value, rules)


def _apply(config: Any, name: str, value: Any, rules: Any) -> None:
    for pattern, small in rules:
        if re.fullmatch(pattern, name):
            if value is None or (not isinstance(small, float) and not value and small):
                return
            if isinstance(value, bool) == isinstance(small, bool) and (
                isinstance(small, bool) or value > small
            ):
                _put(config, name, small)
            return


def _put(config: Any, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except (AttributeError, NotImplementedError, ValueError, TypeError):
        return


def _small_backbone() -> Any:
    """A ResNet in place of a backbone of timm, which may not be installed."""
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        out_features=["stage2", "stage3", "stage4"],
    )


def _few_layer_types(types: list[Any]) -> list[Any]:
    """Two layers that show as many kinds as possible."""
    kinds = list(dict.fromkeys(types))
    return (kinds + kinds)[:LAYERS] if len(kinds) < LAYERS else kinds[:LAYERS]


def _shrink_list(name: str, values: Any) -> Any:
    if _DEPTHS.fullmatch(name) and all(isinstance(v, int) for v in values):
        return type(values)(1 for _ in values)
    numbers = all(isinstance(v, int) and not isinstance(v, bool) for v in values)
    if not numbers or _KEPT_LISTS.fullmatch(name) or max(values) <= WIDTH:
        return values
    factor = max(1, min(v for v in values if v) // 16)
    return type(values)(max(v // factor, 8) for v in values)
