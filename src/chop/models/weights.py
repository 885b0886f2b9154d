"""Weights in files: safetensors, or those of `torch.save`, which are read without running code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chop.errors import CheckpointError


def load_weights(model: nn.Module, path: str | Path, prefix: str = "") -> nn.Module:
    """The model, with the weights of a file in place of its own.

    Args:
        model: gets the weights.
        path: tensors by name, or a mapping whose `state_dict` they are.
        prefix: what the names start with in the file, and not in the model.

    Raises:
        CheckpointError: the file is missing or broken, would run code, or does not fit the model.
    """
    state = {name.removeprefix(prefix): x for name, x in _read_state(Path(path)).items()}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(f"'{path}' does not fit the model: {error}") from error
    return model


def _read_state(path: Path) -> Mapping[str, Any]:
    """The tensors of a file by name, whether they are all of it or its `state_dict`."""
    found = _read(path)
    state = found.get("state_dict", found) if isinstance(found, Mapping) else found
    if not isinstance(state, Mapping):
        kind = type(state).__name__
        raise CheckpointError(f"'{path}' holds a {kind}, expected tensors by name.")
    return state


def _read(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise CheckpointError(f"there is no file '{path}'.")
    try:
        return load_file(path)
    except SafetensorError:
        pass  # then it is torch's own kind
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its unpickler happens to meet
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"'{path}' holds no weights that can be read: {reason}") from error
