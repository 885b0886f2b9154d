"""Weights in files: safetensors, or those of `torch.save`, which are read without running code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from chop.errors import CheckpointError, ConfigError, check_known, enumerate_names, first_line
from chop.files import is_readable_file
from chop.ir.graph import MaseGraph

LoadType = Literal["mz", "pt", "pl"]
NESTED = ("state_dict", "model")
"""Where training scripts keep the tensors in a file that holds more."""
PARALLEL = "module."
"""What `DataParallel` puts before the names."""
MAX_NAMES = 5


def load_checkpoint(
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
    check_known(load_type, get_args(LoadType), "load_type: got")
    if load_type == "mz":
        return MaseGraph.from_checkpoint(load_name).model
    if model is None:
        raise ConfigError(f"load_type '{load_type}' holds weights alone: give model=.")
    return load_weights(model, load_name, prefix="model." if load_type == "pl" else "")


def load_weights(model: nn.Module, path: str | Path, prefix: str = "") -> nn.Module:
    """The model, with the weights of a file in place of its own.

    Args:
        model: gets the weights.
        path: tensors by name, or a mapping whose `state_dict` or `model` they are.
        prefix: what the names start with in the file, and not in the model.

    Raises:
        CheckpointError: the file is missing or broken, would run code, or does not fit the model.
    """
    own, state = model.state_dict(), {}
    for name, tensor in _read_state(Path(path)).items():
        bare = name.removeprefix(prefix)
        state[bare if bare in own else bare.removeprefix(PARALLEL)] = tensor
    differences = _differences(own, state)
    if differences:
        raise CheckpointError(
            f"'{path}' does not fit the model {type(model).__name__}: {'; '.join(differences)}."
        )
    model.load_state_dict(state)
    return model


def _differences(own: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    both = own.keys() & state.keys()
    found = {
        "missing": own.keys() - state.keys(),
        "unexpected": state.keys() - own.keys(),
        "of another shape": {key for key in both if _shape(own[key]) != _shape(state[key])},
    }
    return [
        f"{what} {enumerate_names(sorted(names), MAX_NAMES)}"
        for what, names in found.items()
        if names
    ]


def _shape(value: Any) -> torch.Size | None:
    return value.shape if isinstance(value, Tensor) else None


def _read_state(path: Path) -> Mapping[str, Any]:
    """The tensors of a file by name, whether they are all of it or nested in it."""
    state = _read(path)
    if isinstance(state, Mapping):
        nested = (state[key] for key in NESTED if key in state)
        state = next((inner for inner in nested if not isinstance(inner, Tensor)), state)
    if not isinstance(state, Mapping):
        kind = type(state).__name__
        raise CheckpointError(f"'{path}' holds a {kind}, expected tensors by name.")
    return state


def _read(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not is_readable_file(path):
        raise CheckpointError(f"weights '{path}': there is no such file.")
    try:
        return load_file(path)
    except SafetensorError:
        pass  # then it is torch's own kind
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its unpickler happens to meet
        raise CheckpointError(
            f"'{path}' holds no weights that can be read: expected tensors alone, as "
            f"torch.save(model.state_dict(), ...) or safetensors write them ({first_line(error)})"
        ) from error
