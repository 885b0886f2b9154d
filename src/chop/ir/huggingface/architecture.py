"""Lookup of the transformers model class for a configuration."""

from __future__ import annotations

from typing import Any

from chop.errors import ConfigError
from chop.private.transformers_api import is_model_class


def check_architectures(config: Any, where: str) -> None:
    """Raises ConfigError unless `architectures` of a configuration is a list of names.

    Args:
        config: transformers configuration.
        where: the folder or file, for messages.
    """
    names = config.architectures
    if names is None:
        return
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where}: expected class names in 'architectures', got {names!r:.80}.")


def named_class(config: Any, where: str) -> Any:
    """Returns the model class that a configuration names; None if it is not of transformers.

    Args:
        config: transformers configuration.
        where: the folder or file, for messages.
    Raises:
        ConfigError: if the name belongs to something other than a model class.
    """
    import transformers

    check_architectures(config, where)
    name = next(iter(config.architectures or ()), "")
    model_class = getattr(transformers, name, None) if name.isidentifier() else None
    if model_class is None:
        return None
    if not is_model_class(model_class):
        raise ConfigError(
            f"{where}: its architecture is '{name:.80}', which is not a Hugging Face model."
        )
    return model_class
