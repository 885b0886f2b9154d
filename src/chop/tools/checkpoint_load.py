"""One call for the kinds of checkpoints that users have."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from torch import nn

from chop.errors import ConfigError, did_you_mean
from chop.ir.graph import MaseGraph
from chop.models.weights import load_weights

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
    return load_weights(model, load_name, prefix="model." if load_type == "pl" else "")
