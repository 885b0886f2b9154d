"""Output layers of language models in transformers."""

from __future__ import annotations

from typing import Any

from torch import nn

from chop.captured.module import CapturedModule
from chop.captured.original import KEY, Original
from chop.errors import GraphError
from chop.ir.huggingface.skeleton import empty_model


def output_layer_path(captured: CapturedModule) -> str | None:
    """Returns the path of a Hugging Face model's output embeddings; None if it has none."""
    if captured.record.config is None:
        return None
    model: Any = _original_model(captured)
    if not hasattr(model, "get_output_embeddings"):
        model = empty_model(captured.record.class_name, captured.record.config)
    head = None if model is None else model.get_output_embeddings()
    if head is None:
        return None
    return next((path for path, module in model.named_modules() if module is head), None)


def _original_model(captured: CapturedModule) -> nn.Module | None:
    """Returns the captured model, or one with the classes of its modules."""
    original: Original | None = vars(captured).get(KEY)
    if original is None or original.model is not None:
        return None if original is None else original.model
    try:
        return original.restore(captured)
    except GraphError:
        return None
