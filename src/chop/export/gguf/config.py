"""GGUF configurations: settings of a model as keys of a file, and those that are read back."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from chop.errors import ConfigError, enumerate_names
from chop.export.gguf.architectures import ARCHITECTURES, UNREAD, Architecture
from chop.export.gguf.rope import check_rope, read_rope, rope_metadata

SHOWN = 20
AS_IT_IS = "compressed-tensors holds the model as it is."


def check_architecture(config: Any) -> Architecture:
    """The architecture of a model, whose configuration says nothing that a file cannot.

    Raises:
        ConfigError: GGUF has none that this project knows, or engines would compute something else.
    """
    kind = config.model_type
    if kind in UNREAD:
        raise ConfigError(
            f"gguf: transformers {UNREAD[kind]}, so that a file of a {kind} could not be read back "
            f"and compared; expected one of {enumerate_names(sorted(ARCHITECTURES), SHOWN)}."
        )
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"gguf: expected a model of a known architecture, got model_type '{kind}': known are "
            f"{enumerate_names(sorted(ARCHITECTURES), SHOWN)}; {AS_IT_IS}"
        )
    found = ARCHITECTURES[kind]
    computed = {name: compute(config) for name, compute in found.computed.items()}
    for attribute, value in {**found.expected, **computed}.items():
        given = getattr(config, attribute, value)
        if given != value:
            raise ConfigError(
                f"gguf: engines run a {kind} with {attribute}={value!r}, got {given!r}; {AS_IT_IS}"
            )
    for attribute in found.required:
        if getattr(config, attribute) is None:
            raise ConfigError(f"gguf: engines run a {kind} with {attribute}, got None; {AS_IT_IS}")
    window = getattr(config, "sliding_window", None) if found.has_window else None
    if window is not None and window < config.max_position_embeddings:
        raise ConfigError(
            f"gguf: engines run a {kind} without a sliding window, got one of {window} positions; "
            f"set max_position_embeddings to {window}, or sliding_window to None."
        )
    check_rope(found, config)
    return found


def node_metadata(config: Any, architecture: Architecture) -> dict[str, int | float | str]:
    """A configuration as keys and values of GGUF.

    Args:
        config: of transformers.
        architecture: its own, see `check_architecture`.
    """
    name = architecture.name
    values = {key: getattr(config, x, None) for x, key in architecture.keys.items()}
    found = {f"{name}.{key}": value for key, value in values.items() if value is not None}
    if config.model_type == "gpt2":
        found[f"{name}.feed_forward_length"] = config.n_inner or 4 * config.n_embd
    return found | rope_metadata(architecture, config)


def unread_settings(
    config: Any, metadata: Mapping[str, Any], tensors: Container[str], where: str
) -> dict[str, Any]:
    """What a file says of a configuration and transformers does not read, or not without tensors.

    Args:
        config: as transformers read it.
        metadata: the values of the file by key.
        tensors: names of its tensors.
        where: the file, for messages.
    Returns: By attribute.

    Raises:
        ConfigError, CheckpointError: rotary embeddings have no form here, see `read_rope`.
    """
    known = ARCHITECTURES.get(config.model_type)
    if known is None:
        return {}
    keys = {name: f"{known.name}.{key}" for name, key in known.unread.items()}
    found = {name: metadata[key] for name, key in keys.items() if key in metadata}
    found |= {name: (x in tensors) == is_there for name, (x, is_there) in known.told_by.items()}
    if rope := read_rope(known, metadata, where):
        found["rope_parameters"] = rope
    for name, compute in known.computed.items():
        found[name] = compute(config)
    padding, size = (
        getattr(config, "pad_token_id", None),
        found.get("vocab_size", config.vocab_size),
    )
    if isinstance(padding, int) and isinstance(size, int) and padding >= size:
        found["pad_token_id"] = None  # a default, of larger vocabularies
    return found
