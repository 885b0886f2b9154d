"""Probe: one call of a user's model on its rows, before anything is trained or captured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from chop.errors import ChopError, ConfigError, first_line
from chop.models import reason_of_user_code
from chop.train import Rows
from chop.train.calibration import example_inputs
from chop.workloads.settings import WorkloadConfig


def check_forward(model: nn.Module, rows: Rows, config: WorkloadConfig) -> None:
    """Calls a model on three rows, without gradients; random numbers that it draws do not count.

    Args:
        model: on the device that it is to run on.
        rows: for training.
        config: names both.
    Raises:
        ConfigError: its forward raises; the message has the line, and what the rows are.
    """
    inputs = example_inputs(model, rows)
    was_training = model.training
    try:
        with torch.no_grad(), torch.random.fork_rng():
            model.eval()(**inputs)
    except ChopError:
        raise
    except Exception as error:
        file = re.match(r".+\.py(?=:)", config.model)
        plain = f"{type(error).__name__}: {first_line(error).removesuffix('.')}."
        reason = reason_of_user_code(error, Path(file[0])) if file else plain
        pictures = "; --image-size and --channels change pictures"
        raise ConfigError(
            f"'{config.model}' cannot take rows of '{config.dataset}', {_listed(inputs)}: {reason} "
            f"The model is called with these columns alone, in these shapes and types"
            f"{pictures if 'pixel_values' in rows.columns else ''}."
        ) from error
    finally:
        model.train(was_training)


def _listed(inputs: Mapping[str, Tensor]) -> str:
    kinds = {name: str(value.dtype).removeprefix("torch.") for name, value in inputs.items()}
    return ", ".join(f"{name} {kind} {tuple(inputs[name].shape)}" for name, kind in kinds.items())
