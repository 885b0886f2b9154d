"""Model inputs by name from the batches of a data module."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Protocol

import torch
from torch import nn

from chop.config import Range, with_checked_arguments
from chop.errors import ConfigError, check_known, describe
from chop.models import ModelInfo
from chop.train.device import usable_device
from chop.train.model_io import LABELS
from chop.train.rows import tokens_as_labels

LOADERS = ("train", "val", "test")
CLASSIFICATION = ("cls", "classification", "text-classification", "image-classification")
LANGUAGE_MODELING = ("lm", "language_modeling", "text-generation", "fill-mask")
FED = ("input_ids", "attention_mask", LABELS)
"""Inputs of text models."""


class DataModule(Protocol):
    """Object with data loaders: `MaseDataModule`, or a user's class."""

    def train_dataloader(self) -> Any:
        """Returns batches for training."""

    def val_dataloader(self) -> Any:
        """Returns batches for validation."""

    def test_dataloader(self) -> Any:
        """Returns batches for testing."""


class InputGenerator:
    """Iterator over batches as mappings of inputs by name.

    Every `iter()` restarts it. Labels are among the inputs of text models only; image and vector
    models take one tensor.

    Args:
        model_info: from `chop.models.get_model_info`.
        data_module: its batches are mappings, or pairs `(x, labels)`.
        task: `cls` or `lm`, or a task of `chop.models.load_model`. For `lm` the labels are the
            tokens, and -100 at padding, which losses ignore.
        which_dataloader: `train`, `val` or `test`.
        max_batches: maximum number of batches; None uses all.

    Raises:
        ConfigError: if the loader or task is unknown.
    """

    @with_checked_arguments
    def __init__(
        self,
        model_info: ModelInfo,
        data_module: DataModule,
        task: str,
        which_dataloader: str,
        max_batches: Annotated[int, Range(1)] | None = None,
    ) -> None:
        if not hasattr(data_module, "train_dataloader"):
            raise ConfigError(
                f"data_module: expected a MaseDataModule, or an object with train_dataloader(), "
                f"val_dataloader() and test_dataloader(), got {describe(data_module)}."
            )
        _check("which_dataloader", which_dataloader, LOADERS)
        _check("task", task, (*LANGUAGE_MODELING, *CLASSIFICATION))
        self.model_info, self.task, self.max_batches = model_info, task, max_batches
        self.dataloader = getattr(data_module, f"{which_dataloader}_dataloader")()
        self._batches = self._read()

    def __iter__(self) -> InputGenerator:
        """Restarts the iteration."""
        self._batches = self._read()
        return self

    def __next__(self) -> dict[str, Any]:
        """Returns the next batch."""
        return next(self._batches)

    def _read(self) -> Iterator[dict[str, Any]]:
        for count, batch in enumerate(self.dataloader):
            if self.max_batches is not None and count >= self.max_batches:
                return
            yield self._inputs(batch)

    def _inputs(self, batch: Any) -> dict[str, Any]:
        if not isinstance(batch, dict):
            return {self.model_info.input_name: batch[0]}
        if self.task in CLASSIFICATION:
            return dict(batch)
        return {**batch, LABELS: tokens_as_labels(batch, batch["input_ids"])}


@with_checked_arguments
def get_dummy_input(
    model_info: ModelInfo,
    data_module: DataModule,
    task: str,
    device: str | torch.device = "cpu",
) -> dict[str, Any]:
    """Returns one training batch as model inputs, on `device`.

    Raises:
        ConfigError: if the task is unknown, or the device does not exist.
    """
    batch = next(InputGenerator(model_info, data_module, task, "train"))
    usable = device if str(device) == "meta" else usable_device(device)
    return {name: value.to(usable) for name, value in batch.items()}


@with_checked_arguments
def get_cf_args(model_info: ModelInfo, task: str, model: nn.Module) -> dict[str, Any]:
    """Returns arguments of `forward` to fix at capture: `MaseGraph(model, cf_args=...)`.

    Args:
        model_info: from `chop.models.get_model_info`.
        task: `cls` or `lm`, or a task of `chop.models.load_model`.
        model: the model.

    Returns: for text models, the defaults of all arguments but `input_ids`, `attention_mask` and
        `labels`; for others an empty mapping.

    Raises:
        ConfigError: if the task is unknown, or `model` is no module.
    """
    _check("task", task, (*LANGUAGE_MODELING, *CLASSIFICATION))
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: expected a module, got {describe(model)}.")
    if not model_info.is_nlp_model:
        return {}
    empty = inspect.Parameter.empty
    parameters = inspect.signature(model.forward).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not empty and p.name not in FED}


def _check(name: str, value: str, choices: Sequence[str]) -> None:
    check_known(value, choices, f"{name}: got")
