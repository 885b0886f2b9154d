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
LOCAL, WHOLE = "sliding_attention", "full_attention"
WIDTH, HEADS = "embedding_length", "attention.head_count"
THETA = 10_000.0
"""Default base of frequencies."""
SCALINGS = ("type", "factor", "original_context_length", "finetuned")
"""Keys of a scaling that are read; the last two have no effect on linear scaling."""


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
    if kind == "llama3":
        metadata[ROPE_KEY] = json.dumps(dict(rope))
    return metadata


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
        ConfigError: if frequencies are not scaled linearly.
        CheckpointError: if a value is not a positive number.

    Source: llama.cpp, `llama-model.cpp`, where a scaling without a type is linear.
    """
    if not architecture.rope_types:
        return {}
    if ROPE_KEY in metadata:
        settings: dict[str, Any] = parse_json(str(metadata[ROPE_KEY]))
        return settings
    name = architecture.name
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
    if kind != "linear" or others:
        what = repr(kind) if kind != "linear" else f"'{others[0]:.80}'"
        raise ConfigError(
            f"{where}: expected a linear scaling of rotary embeddings, got {what:.80}."
        )
    key = f"{scaling}factor" if f"{scaling}factor" in metadata else older
    if key not in metadata and f"{scaling}type" not in metadata:
        return {}
    if key not in metadata:
        raise CheckpointError(f"{where}: expected a positive number in {scaling}factor.")
    return {"rope_type": "linear", "factor": _positive(metadata, key, where)}


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
