"""Workload of a QONNX file without data: random inputs."""

from __future__ import annotations

import torch

from chop.base.files import make_folder
from chop.base.notices import assume
from chop.errors import ConfigError
from chop.export.qonnx.reader import is_qonnx, random_inputs, read_module
from chop.train import Rows
from chop.train.tasks import JUDGED_TASK
from chop.workloads.settings import WorkloadConfig
from chop.workloads.workload import CHECKPOINT_EPOCHS, CHECKPOINT_LR, Workload

RANDOM_ROWS = 64
"""Number of rows by default."""


def check_takes_formats(config: WorkloadConfig) -> None:
    """Raises ConfigError if a job quantizes or trains its model, and the model is a QONNX file."""
    if not is_qonnx(config.model):
        return
    if not config.takes_formats:
        raise ConfigError(
            f"model: '{config.model}' is an ONNX file, which only chop emit and chop lower read "
            "(with Quant nodes, QONNX); pass the PyTorch model that it was exported from."
        )
    if config.train_epochs:
        raise ConfigError(f"train_epochs: '{config.model}' is quantized already; remove it.")


def random_workload(config: WorkloadConfig, place: torch.device) -> Workload:
    """Returns a QONNX file's model with random inputs, which have no labels."""
    make_folder(config.out)
    model = read_module(config.model)
    inputs = random_inputs(model, config.limit or RANDOM_ROWS, config.seed)
    rows = Rows(dict(inputs), torch.zeros(len(next(iter(inputs.values())))))
    assume(
        "No data set was given: inputs are random, in the range of the first Quant node or from -1 "
        "to 1, and there is no accuracy. Pass --dataset to measure it."
    )
    return Workload(
        model.to(place),
        config.model,
        "random inputs",
        train=rows,
        test=rows,
        device=place,
        tuning_epochs=CHECKPOINT_EPOCHS,
        tuning_lr=CHECKPOINT_LR,
        task=JUDGED_TASK,
    )
