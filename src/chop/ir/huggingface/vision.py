"""Hugging Face vision-language models: the modules outside the text decoder."""

from __future__ import annotations

from typing import Any

from torch import nn

from chop.errors import ConfigError


def vision_modules(model: Any) -> list[str]:
    """Returns the paths of the vision tower and the projector to token embeddings.

    These are the modules with parameters outside the text decoder, at each level of the module
    tree, except the output layer. Names differ between models.

    Returns: an empty result for a model without a vision tower.
    """
    decoder = _decoder(model)
    path = next((name for name, x in model.named_modules() if x is decoder and name), None)
    if path is None:
        return []
    head, paths, steps = model.get_output_embeddings(), list[str](), path.split(".")
    for depth, step in enumerate(steps):
        holder = ".".join(steps[:depth])
        for name, child in model.get_submodule(holder).named_children():
            if name != step and child is not head and any(True for _ in child.parameters()):
                paths.append(f"{holder}.{name}".lstrip("."))
    return paths


def check_has_vision(model: Any, where: str) -> list[str]:
    """Returns `vision_modules` of a model that must have some.

    Args:
        model: any model.
        where: setting that needs them, for messages.
    Raises:
        ConfigError: if the model has no vision tower next to a text decoder.

    Example:
        >>> check_has_vision(nn.Linear(2, 2), "skip_vision")
        Traceback (most recent call last):
        ...
        chop.errors.ConfigError: skip_vision: Linear has no vision tower next to a text decoder.
    """
    paths = vision_modules(model)
    if not paths:
        name = type(model).__name__
        raise ConfigError(f"{where}: {name} has no vision tower next to a text decoder.")
    return paths


def _decoder(model: Any) -> nn.Module | None:
    """Returns the text decoder of a vision-language model; None for other models."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        return None
    has_vision = getattr(model.config, "vision_config", None) is not None
    decoder: nn.Module | None = model.get_decoder() if has_vision else None
    return decoder
