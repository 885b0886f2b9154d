"""GGUF rotary embeddings: conversion of their settings to keys and tensors, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chop.base.files.documents import parse_json
from chop.errors import CheckpointError, ConfigError
from chop.export.gguf.architectures import Architecture, head_size

ROPE_KEY = "chop.rope_parameters"
"""Key for the settings from which chop computed frequency divisors."""
GRANITE = "granite"
"""Architecture in which `finetuned` says whether there are rotary embeddings."""
LOCAL, WHOLE = "sliding_attention", "full_attention"
WIDTH, HEADS = "embedding_length", "attention.head_count"
THETA = 10_000.0
"""Default base of frequencies."""
SCALINGS = ("type", "factor", "original_context_length", "finetuned")
"""Keys of a scaling that are read; the last two have no effect on linear scaling."""
YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
"""YaRN settings that llama.cpp always assumes; it reads no key of them for most architectures."""
YARN_KEYS = {
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "attn_factor": "attention_factor",
}
"""YaRN settings by key; the factor of attention is relative to YaRN's usual one."""
ORIGINAL = "original_max_position_embeddings"


def check_rope(architecture: Architecture, config: Any) -> None:
    """Checks that engines compute the same rotary embeddings as the configuration.

    Raises:
        ConfigError: if they differ.
    """
    if not architecture.rope_types:
        return
    whole, local = _ropes(architecture, config)
    _check_one(architecture, whole, architecture.rope_types)
    if local is not None:
        _check_one(architecture, local, ("default",))


def _check_one(architecture: Architecture, rope: Mapping[str, Any], types: tuple[str, ...]) -> None:
    kind, share = rope.get("rope_type", "default"), rope.get("partial_rotary_factor", 1.0)
    is_whole = share == 1 or architecture.turns_part
    others = [f"{x}={rope[x]!r}" for x, value in YARN.items() if rope.get(x) not in (None, value)]
    if kind == "yarn" and kind in types and others:
        raise ConfigError(
            "gguf: llama.cpp scales rotary embeddings with YaRN's default settings, got "
            f"{', '.join(others)}; compressed-tensors supports this model."
        )
    if kind in types and is_whole:
        return
    what = f"partial_rotary_factor {share}" if kind in types else f"rope_type '{kind}'"
    required = "" if architecture.turns_part else " of a whole head"
    raise ConfigError(
        f"gguf: expected rotary embeddings{required} of type {' or '.join(types)}, got {what}; "
        "compressed-tensors supports this model."
    )


def _ropes(
    architecture: Architecture, config: Any
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Returns the settings of global layers, and those of sliding-window layers if they differ."""
    rope = getattr(config, "rope_parameters", None) or {}
    return (rope[WHOLE], rope[LOCAL]) if architecture.has_local_rope else (rope, None)


def rope_metadata(architecture: Architecture, config: Any) -> dict[str, int | float | str]:
    """Returns the GGUF keys and values of rotary embedding settings.

    Args:
        architecture: architecture of the model, see `check_rope`.
        config: transformers configuration.
    """
    if not architecture.rope_types:
        return {}
    name, size = architecture.name, head_size(config)
    rope, local = _ropes(architecture, config)
    share, kind = rope.get("partial_rotary_factor", 1.0), rope.get("rope_type", "default")
    metadata: dict[str, int | float | str] = {
        f"{name}.rope.dimension_count": int(size * share),
        f"{name}.attention.key_length": size,
        f"{name}.attention.value_length": size,
        f"{name}.rope.freq_base": float(rope["rope_theta"]),
    }
    if local is not None:
        metadata[f"{name}.rope.freq_base_swa"] = float(local["rope_theta"])
    if kind == "linear":
        metadata[f"{name}.rope.scaling.type"] = "linear"
        metadata[f"{name}.rope.scaling.factor"] = float(rope["factor"])
    if kind == "yarn":
        metadata |= {f"{name}.rope.scaling.{key}": x for key, x in _yarn(config, rope).items()}
    if kind == "llama3":
        metadata[ROPE_KEY] = json.dumps(dict(rope))
    return metadata


def _yarn(config: Any, rope: Mapping[str, Any]) -> dict[str, int | float | str]:
    """Returns the keys of a YaRN scaling; engines derive its usual attention factor themselves."""
    original = rope.get(ORIGINAL) or config.max_position_embeddings
    factor = rope.get("factor") or config.max_position_embeddings / original
    usual, attention = _magnitude(factor), rope.get("attention_factor")
    scales = [rope.get(x) for x in ("mscale", "mscale_all_dim")]
    if attention is None:
        above, below = (_magnitude(factor, x or 1.0) for x in scales)
        attention = above / below if all(scales) else usual
    keys: dict[str, int | float | str] = {
        "type": "yarn",
        "factor": float(factor),
        "original_context_length": int(original),
    }
    return keys if attention == usual else {**keys, "attn_factor": attention / usual}


def _magnitude(factor: float, scale: float = 1.0) -> float:
    """Returns the factor by which YaRN multiplies queries, and keys."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def read_rope(
    architecture: Architecture, metadata: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Reads `rope_parameters`, of which transformers reads at most the base.

    Args:
        architecture: architecture of the model.
        metadata: values of the file by key.
        where: file, for messages.
    Returns: empty for models without rotary embeddings.

    Raises:
        ConfigError: if frequencies are scaled neither linearly nor by YaRN, or if there are none.
        CheckpointError: if a value is not a positive number.

    Source: llama.cpp, `llama-model.cpp`, where a scaling without a type is linear.
    """
    if not architecture.rope_types:
        return {}
    if ROPE_KEY in metadata:
        settings: dict[str, Any] = parse_json(str(metadata[ROPE_KEY]))
        return settings
    name = architecture.name
    if name == GRANITE and metadata.get(f"{name}.rope.scaling.finetuned") is False:
        raise ConfigError(f"{where}: expected a {name} with rotary embeddings, got one without.")
    whole = {
        "rope_type": "default",
        "rope_theta": _positive(metadata, f"{name}.rope.freq_base", where),
        **_part(architecture, metadata, where),
        **_scaling(name, metadata, where),
    }
    if not architecture.has_local_rope:
        return whole
    theta = _positive(metadata, f"{name}.rope.freq_base_swa", where)
    return {WHOLE: whole, LOCAL: {"rope_type": "default", "rope_theta": theta}}


def _positive(metadata: Mapping[str, Any], key: str, where: str) -> float:
    value = metadata.get(key, THETA)
    if type(value) is not float or not math.isfinite(value) or value <= 0:
        raise CheckpointError(f"{where}: expected a positive number in {key}.")
    return value


def _part(architecture: Architecture, metadata: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the rotated fraction of a head, if the architecture supports partial rotation."""
    name = architecture.name
    width, heads = (metadata.get(f"{name}.{x}") for x in (WIDTH, HEADS))
    if not architecture.turns_part or type(width) is not int or type(heads) is not int or not heads:
        return {}
    size = metadata.get(f"{name}.attention.key_length", width // heads)
    count = metadata.get(f"{name}.rope.dimension_count", size)
    if not all(type(x) is int for x in (count, size)) or not 0 < count <= size:
        raise CheckpointError(
            f"{where}: expected a {name}.rope.dimension_count of 1 to {size!r:.40}, got "
            f"{count!r:.40}."
        )
    share = count / size
    # transformers takes the integer part of the product
    return {"partial_rotary_factor": math.nextafter(share, 2) if size * share < count else share}


def _scaling(name: str, metadata: Mapping[str, Any], where: str) -> dict[str, Any]:
    scaling, older = f"{name}.rope.scaling.", f"{name}.rope.scale_linear"
    known = {older, *(f"{scaling}{x}" for x in SCALINGS)}
    others = [x for x in metadata if x.startswith(f"{name}.rope.scal") and x not in known]
    kind = metadata.get(f"{scaling}type", "linear")
    if kind == "none":
        return {}
    if kind == "yarn":
        others = [x for x in others if x.removeprefix(scaling) not in YARN_KEYS]
    if kind not in ("linear", "yarn") or others:
        what = f"'{others[0]:.80}'" if others and kind in ("linear", "yarn") else repr(kind)
        raise ConfigError(
            f"{where}: expected a linear or YaRN scaling of rotary embeddings, got {what:.80}."
        )
    if kind == "yarn":
        return _read_yarn(scaling, metadata, where)
    key = f"{scaling}factor" if f"{scaling}factor" in metadata else older
    if key not in metadata and f"{scaling}type" not in metadata:
        return {}
    if key not in metadata:
        raise CheckpointError(f"{where}: expected a positive number in {scaling}factor.")
    return {"rope_type": "linear", "factor": _positive(metadata, key, where)}


def _read_yarn(scaling: str, metadata: Mapping[str, Any], where: str) -> dict[str, Any]:
    original = metadata.get(f"{scaling}original_context_length")
    if type(original) is not int or original <= 0:
        raise CheckpointError(
            f"{where}: expected a positive number in {scaling}original_context_length."
        )
    if f"{scaling}factor" not in metadata:
        raise CheckpointError(f"{where}: expected a positive number in {scaling}factor.")
    factor = _positive(metadata, f"{scaling}factor", where)
    settings: dict[str, Any] = {"rope_type": "yarn", "factor": factor, ORIGINAL: original}
    for key, name in YARN_KEYS.items():
        if f"{scaling}{key}" in metadata:
            settings[name] = _positive(metadata, f"{scaling}{key}", where)
    if "attention_factor" in settings:
        settings["attention_factor"] *= _magnitude(factor)
    return settings


def frequency_divisors(config: Any) -> Tensor | None:
    """Returns llama.cpp's divisors of rotary frequencies, float32 (head size / 2).

    Returns: None if all frequencies have the same divisor.

    Source: Llama 3.1's scaling, as transformers computes rope_type "llama3".
    """
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "llama3":
        return None
    size, factor, low = head_size(config), rope["factor"], rope["low_freq_factor"]
    exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
    wavelengths = 2 * math.pi * rope["rope_theta"] ** exponents
    turns = rope["original_max_position_embeddings"] / wavelengths
    share = ((turns - low) / (rope["high_freq_factor"] - low)).clamp(0, 1)
    divisors: Tensor = 1 / ((1 - share) / factor + share)
    return divisors.float()
