"""Vision-language models of transformers: the modules beside the text decoder."""

from __future__ import annotations

from typing import Any

from torch import nn

from chop.errors import ConfigError


def vision_modules(model: Any) -> list[str]:
    """The paths of the vision tower and of what projects its outputs to embeddings of tokens.

    They are the modules with parameters beside the text decoder, at each level of the module tree
    down to it, but for the output layer: names differ from model to model.

    Returns: none of a model that has no vision tower beside a text decoder.
    """
    decoder = _decoder(model)
    path = next((name for name, x in model.named_modules() if x is decoder and name), None)
    if path is None:
        return []
    head, found, steps = model.get_output_embeddings(), list[str](), path.split(".")
    for depth, step in enumerate(steps):
        holder = ".".join(steps[:depth])
        for name, child in model.get_submodule(holder).named_children():
            if name != step and child is not head and any(True for _ in child.parameters()):
                found.append(f"{holder}.{name}".lstrip("."))
    return found


def check_has_vision(model: Any, where: str) -> list[str]:
    """The same of a model that must have some.

    Args:
        model: of any kind.
        where: the setting that asks, for messages.
    Raises:
        ConfigError: the model has no vision tower beside a text decoder.

    Example:
        >>> check_has_vision(nn.Linear(2, 2), "skip_vision")
        Traceback (most recent call last):
        ...
        chop.errors.ConfigError: skip_vision: Linear has no vision tower beside a text decoder.
    """
    found = vision_modules(model)
    if not found:
        name = type(model).__name__
        raise ConfigError(f"{where}: {name} has no vision tower beside a text decoder.")
    return found


def _decoder(model: Any) -> nn.Module | None:
    """The text decoder of a vision-language model; None of other models."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        return None
    has_vision = getattr(model.config, "vision_config", None) is not None
    decoder: nn.Module | None = model.get_decoder() if has_vision else None
    return decoder
