"""Conversion between model configurations and GGUF keys."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from chop.errors import ConfigError, enumerate_names
from chop.export.gguf.architectures import ARCHITECTURES, UNREAD, Architecture
from chop.export.gguf.rope import check_rope, read_rope, rope_metadata

MOST_NAMES = 20
AS_IT_IS = "compressed-tensors supports this model."


def check_architecture(config: Any) -> Architecture:
    """Returns the architecture of a model whose configuration GGUF can express.

    Raises:
        ConfigError: if the architecture is not supported, or if engines would compute differently.
    """
    kind = config.model_type
    if kind in UNREAD:
        raise ConfigError(
            f"gguf: a {kind} is not supported, because transformers {UNREAD[kind]}. Supported are "
            f"{enumerate_names(sorted(ARCHITECTURES), MOST_NAMES)}."
        )
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"gguf: the model_type '{kind}' is not supported; {AS_IT_IS} GGUF supports "
            f"{enumerate_names(sorted(ARCHITECTURES), MOST_NAMES)}."
        )
    architecture = ARCHITECTURES[kind]
    computed = {name: compute(config) for name, compute in architecture.computed.items()}
    for attribute, value in {**architecture.expected, **computed}.items():
        given = getattr(config, attribute, value)
        if given != value:
            raise ConfigError(
                f"gguf: engines always run a {kind} with {attribute}={value!r}, got {given!r}; "
                f"{AS_IT_IS}"
            )
    for attribute in architecture.required:
        if getattr(config, attribute) is None:
            raise ConfigError(f"gguf: {attribute} of a {kind} must not be None; {AS_IT_IS}")
    window = getattr(config, "sliding_window", None) if architecture.has_window else None
    if window is not None and window < config.max_position_embeddings:
        raise ConfigError(
            f"gguf: engines ignore the sliding window of a {kind}, which has {window} positions. "
            f"Set max_position_embeddings to {window}, or sliding_window to None."
        )
    check_rope(architecture, config)
    return architecture


def node_metadata(config: Any, architecture: Architecture) -> dict[str, int | float | str]:
    """Returns the GGUF keys and values of a configuration.

    Args:
        config: transformers configuration.
        architecture: its architecture, see `check_architecture`.
    """
    name = architecture.name
    values = {key: getattr(config, x, None) for x, key in architecture.keys.items()}
    keys_and_values = {f"{name}.{key}": value for key, value in values.items() if value is not None}
    if config.model_type == "gpt2":
        keys_and_values[f"{name}.feed_forward_length"] = config.n_inner or 4 * config.n_embd
    return keys_and_values | rope_metadata(architecture, config)


def unread_settings(
    config: Any, metadata: Mapping[str, Any], tensors: Container[str], where: str
) -> dict[str, Any]:
    """Returns settings in a file that transformers ignores, or that depend on its tensors.

    Args:
        config: configuration as transformers read it.
        metadata: values of the file by key.
        tensors: names of its tensors.
        where: file, for messages.
    Returns: values by configuration attribute.

    Raises:
        ConfigError, CheckpointError: if rotary embeddings are not supported, see `read_rope`.
    """
    known = ARCHITECTURES.get(config.model_type)
    if known is None:
        return {}
    keys = {name: f"{known.name}.{key}" for name, key in known.unread.items()}
    settings = {name: metadata[key] for name, key in keys.items() if key in metadata}
    settings |= {
        name: (x in tensors) == is_there for name, (x, is_there) in known.inferred_from.items()
    }
    if rope := read_rope(known, metadata, where):
        settings["rope_parameters"] = rope
    for name, compute in known.computed.items():
        settings[name] = compute(config)
    padding, size = (
        getattr(config, "pad_token_id", None),
        settings.get("vocab_size", config.vocab_size),
    )
    if isinstance(padding, int) and isinstance(size, int) and padding >= size:
        settings["pad_token_id"] = None  # a default, of larger vocabularies
    return settings
