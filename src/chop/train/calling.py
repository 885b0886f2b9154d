"""How a classifier is called and read, whatever wrote it: Hugging Face, plain or captured.

Shapes: B rows, C classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from chop.errors import ConfigError

LABELS = "labels"


def input_columns(model: nn.Module, columns: Iterable[str]) -> dict[str, str]:
    """Parameter of the model's `forward` -> the column of the data set that feeds it.

    A captured graph need not take every column (`token_type_ids`, `attention_mask`), and a
    column that it does not take must not reach it. Columns are matched by name; where none
    matches, a single input column feeds the first parameter, so that `forward(x)` works.

    Raises:
        ConfigError: no input of the model can be fed.
    """
    columns = list(columns)
    parameters = inspect.signature(model.forward).parameters
    if all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values()):
        return {name: name for name in columns}
    taken = {name: name for name in columns if name in parameters}
    inputs = [name for name in columns if name != LABELS]
    if not taken.keys() - {LABELS} and len(inputs) == 1 and LABELS not in parameters:
        return {next(iter(parameters)): inputs[0]}
    if not taken.keys() - {LABELS}:
        raise ConfigError(
            f"{type(model).__name__}.forward takes {list(parameters)}, "
            f"but the data set has {columns}: expected at least one input in common."
        )
    return taken


def loss_and_logits(output: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and the logits of a model's output.

    Args:
        output: a mapping or object with `logits` and perhaps `loss`, a tuple that starts with
            them, or the logits (B, C) themselves.
        labels: int64 (B,); the mean cross entropy with them is the loss where none is given.
    Returns: a scalar, and (B, C).
    Raises:
        ConfigError: the output has no logits.
    """
    loss, logits = _read(output)
    if logits is None:
        raise ConfigError(f"expected an output with 'logits', got {type(output).__name__}.")
    return (F.cross_entropy(logits, labels) if loss is None else loss), logits


def _read(output: Any) -> tuple[Tensor | None, Tensor | None]:
    if isinstance(output, Tensor):
        return None, output
    if isinstance(output, Mapping):
        return output.get("loss"), output.get("logits")
    if hasattr(output, "logits"):
        return getattr(output, "loss", None), output.logits
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        has_loss = output[0].dim() == 0 and len(output) > 1
        return (output[0], output[1]) if has_loss else (None, output[0])
    return None, None
