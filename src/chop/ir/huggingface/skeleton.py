"""Hugging Face models on the meta device, built from a configuration."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


def empty_model(class_name: str, config: Any) -> nn.Module | None:
    """Builds a transformers model on the meta device; None if there is no such class.

    Args:
        class_name: such as "LlamaForCausalLM".
        config: its configuration; it is not changed.
    """
    if config is None:
        return None
    import transformers

    cls: Any = getattr(transformers, class_name, None)
    is_model = isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
    if not is_model or not isinstance(config, transformers.PreTrainedConfig):
        return None
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model: nn.Module = cls(copy.deepcopy(config))
    return model
