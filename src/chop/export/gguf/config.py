"""Conversion between model configurations and GGUF keys."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from chop.errors import ConfigError
from chop.export.gguf.architectures import ARCHITECTURES, UNREAD, Architecture
from chop.export.gguf.rope import check_rope, read_rope, rope_metadata

AS_IT_IS = "compressed-tensors supports this model."
TOKENS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "padding_token_id",
}
"""Keys of special tokens, after the tokenizer's, by attribute."""


def check_architecture(config: Any) -> Architecture:
    """Returns the architecture of a model whose configuration GGUF can express.

    Raises:
        ConfigError: if the architecture is not supported, or if engines would compute differently.
    """
    kind = config.model_type
    if kind in UNREAD:
        raise ConfigError(
            f"gguf: a {kind} is not supported, because transformers {UNREAD[kind]}; {AS_IT_IS}"
        )
    if kind not in ARCHITECTURES:
        raise ConfigError(f"gguf: {_lacking(kind)}; {AS_IT_IS}")
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


def _lacking(kind: str) -> str:
    """Returns the missing part of an unsupported model type."""
    from gguf import MODEL_ARCH_NAMES

    plain = {name.replace("-", ""): name for name in MODEL_ARCH_NAMES.values()}
    name = plain.get(kind.replace("_", "").replace("-", ""))
    if name is None:
        return f"the gguf library has no table of tensors for the model_type '{kind}'"
    return f"the settings of a '{kind}' have no known keys in the architecture '{name}' of GGUF"


def node_metadata(
    config: Any, architecture: Architecture
) -> dict[str, int | float | str | list[int]]:
    """Returns the GGUF keys and values of a configuration.

    Args:
        config: transformers configuration.
        architecture: its architecture, see `check_architecture`.
    """
    name = architecture.name
    values = {key: getattr(config, x, None) for x, key in architecture.keys.items()}
    values |= {key: derive(config) for key, derive in architecture.derived.items()}
    keys_and_values = {f"{name}.{key}": value for key, value in values.items() if value is not None}
    return keys_and_values | rope_metadata(architecture, config)


def stated_config(metadata: Mapping[str, Any], tensors: Container[str]) -> Any | None:
    """Returns the transformers configuration that the keys of a file describe.

    Args:
        metadata: values of the file by key.
        tensors: names of its tensors.
    Returns: None for architectures whose configuration transformers reads itself.
    """
    from transformers import CONFIG_MAPPING

    name = metadata.get("general.architecture")
    own = {one.name: kind for kind, one in ARCHITECTURES.items() if not one.is_read}
    kind = own.get(str(name))
    if kind is None:
        return None
    architecture = ARCHITECTURES[kind]
    keys = {**architecture.keys, "head_dim": "attention.key_length"}
    settings = {x: metadata.get(f"{name}.{key}") for x, key in keys.items()}
    settings = {x: value for x, value in settings.items() if value is not None}
    tokens = {x: metadata.get(f"tokenizer.ggml.{key}") for x, key in TOKENS.items()}
    layers, width, heads = (
        settings.get(x) for x in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    if isinstance(width, int) and isinstance(heads, int) and heads:
        settings.setdefault("head_dim", width // heads)
    if "layer_types" in architecture.computed and isinstance(layers, int):
        tokens["layer_types"] = ["full_attention"] * layers  # until all settings are there
    tied = "output.weight" not in tensors
    own = {x.removeprefix(f"{name}."): value for x, value in metadata.items()}
    stated = {**architecture.expected, **settings, **tokens, **architecture.parse(own)}
    return CONFIG_MAPPING[kind](**stated, tie_word_embeddings=tied)


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
