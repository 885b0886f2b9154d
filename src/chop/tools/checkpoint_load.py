"""One call for the kinds of checkpoints that users have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from chop.errors import CheckpointError, ConfigError, did_you_mean
from chop.ir.graph import MaseGraph

LoadType = Literal["mz", "pt", "pl"]


def load_model(
    load_name: str | Path, load_type: LoadType = "mz", model: nn.Module | None = None
) -> nn.Module:
    """A model with the weights of a checkpoint.

    Args:
        load_name: the file; for `mz` what `MaseGraph.export` was given.
        load_type: `mz`, a graph that `MaseGraph.export` wrote; `pt`, a state dict, of torch or
            safetensors; `pl`, a checkpoint of PyTorch Lightning, whose module calls it `model`.
        model: gets the weights of `pt` and `pl`, in place.

    Returns: the graph's model, or `model`.

    Raises:
        ConfigError: an unknown type, or no model for a state dict.
        CheckpointError: the file is missing or broken, would run code, or does not fit the model.
    """
    if load_type not in get_args(LoadType):
        raise ConfigError(
            f"load_type: got '{load_type}': {did_you_mean(load_type, get_args(LoadType))}"
        )
    if load_type == "mz":
        return MaseGraph.from_checkpoint(load_name).model
    if model is None:
        raise ConfigError(f"load_model: '{load_type}' holds weights alone: give model=.")
    state = _read_state(Path(load_name))
    if load_type == "pl":
        state = {name.removeprefix("model."): x for name, x in state.items()}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(f"'{load_name}' does not fit the model: {error}") from error
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
