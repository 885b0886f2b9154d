"""GGUF rotary embeddings: their settings as keys and tensors, and back."""

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
"""Where a file has what its divisors of frequencies were computed from."""
LOCAL, WHOLE = "sliding_attention", "full_attention"
WIDTH, HEADS = "embedding_length", "attention.head_count"
THETA = 10_000.0
"""Base of frequencies, where a file has none."""
SCALINGS = ("type", "factor", "original_context_length", "finetuned")
"""What is read of a scaling, the latter two of which change nothing in a linear one."""


def check_rope(architecture: Architecture, config: Any) -> None:
    """Raises an error where engines compute other rotary embeddings than a configuration has.

    Raises:
        ConfigError: they do.
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
    of_all = "" if architecture.turns_part else " of all of a head,"
    raise ConfigError(
        f"gguf: expected rotary embeddings{of_all} of the types {', '.join(types)}, got {what}; "
        "compressed-tensors holds the model as it is."
    )


def _ropes(
    architecture: Architecture, config: Any
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Of layers that attend to all positions, and of those with a window where they differ."""
    rope = getattr(config, "rope_parameters", None) or {}
    return (rope[WHOLE], rope[LOCAL]) if architecture.has_local_rope else (rope, None)


def rope_metadata(architecture: Architecture, config: Any) -> dict[str, int | float | str]:
    """Settings of a rotary embedding as keys and values of GGUF.

    Args:
        architecture: of the model, see `check_rope`.
        config: of transformers.
    """
    if not architecture.rope_types:
        return {}
    name, size = architecture.name, head_size(config)
    rope, local = _ropes(architecture, config)
    share, kind = rope.get("partial_rotary_factor", 1.0), rope.get("rope_type", "default")
    found: dict[str, int | float | str] = {
        f"{name}.rope.dimension_count": int(size * share),
        f"{name}.attention.key_length": size,
        f"{name}.attention.value_length": size,
        f"{name}.rope.freq_base": float(rope["rope_theta"]),
    }
    if local is not None:
        found[f"{name}.rope.freq_base_swa"] = float(local["rope_theta"])
    if kind == "linear":
        found[f"{name}.rope.scaling.type"] = "linear"
        found[f"{name}.rope.scaling.factor"] = float(rope["factor"])
    if kind == "llama3":
        found[ROPE_KEY] = json.dumps(dict(rope))
    return found


def read_rope(
    architecture: Architecture, metadata: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """`rope_parameters` of a configuration, of which transformers reads the base alone, or nothing.

    Args:
        architecture: of the model.
        metadata: values of the file by key.
        where: the file, for messages.
    Returns: Nothing for models without rotary embeddings.

    Raises:
        ConfigError: frequencies are scaled otherwise than linearly.
        CheckpointError: what should be a positive number is none.

    Source: llama.cpp, `llama-model.cpp`, where a scaling without a type is linear.
    """
    if not architecture.rope_types:
        return {}
    if ROPE_KEY in metadata:
        found: dict[str, Any] = parse_json(str(metadata[ROPE_KEY]))
        return found
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
    """The share of a head that is turned, where that may be less than all of it."""
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
    """What llama.cpp divides the frequencies of a rotary embedding by, float32 (head size / 2).

    Returns: None where it divides all of them by the same.

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
