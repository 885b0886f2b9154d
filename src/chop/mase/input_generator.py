"""Batches of a data module as the inputs of a model, by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from chop.errors import check_known
from chop.train.model_io import LABELS
from chop.train.rows import tokens_as_labels

if TYPE_CHECKING:
    from chop.models import ModelInfo

LOADERS = ("train", "val", "test")
CLASSIFICATION = ("cls", "classification", "text-classification", "image-classification")
LANGUAGE_MODELING = ("lm", "language_modeling", "text-generation", "fill-mask")
FED = ("input_ids", "attention_mask", LABELS)
"""What a model of texts is given."""


class DataModule(Protocol):
    """What has loaders: `MaseDataModule`, or one of the user's own."""

    def train_dataloader(self) -> Any:
        """Batches to train on."""

    def val_dataloader(self) -> Any:
        """Batches to choose by."""

    def test_dataloader(self) -> Any:
        """Batches to report on."""


class InputGenerator:
    """An iterator over batches as mappings of inputs by name.

    Every `iter()` of it starts anew. Of texts the labels are among the inputs; of pictures and
    vectors, whose models take one tensor, they are not.

    Args:
        model_info: of `chop.models.get_model_info`.
        data_module: batches are mappings, or pairs `(x, labels)`.
        task: `cls` or `lm`, or what `chop.models.load_model` calls them. For `lm` the labels are
            the tokens themselves, and -100, which losses leave out, at padding.
        which_dataloader: `train`, `val` or `test`.
        max_batches: how many batches at most; None takes all.

    Raises:
        ConfigError: there is no such loader or task.
    """

    def __init__(
        self,
        model_info: ModelInfo,
        data_module: DataModule,
        task: str,
        which_dataloader: str,
        max_batches: int | None = None,
    ) -> None:
        _check("which_dataloader", which_dataloader, LOADERS)
        _check("task", task, (*LANGUAGE_MODELING, *CLASSIFICATION))
        self.model_info, self.task, self.max_batches = model_info, task, max_batches
        self.dataloader = getattr(data_module, f"{which_dataloader}_dataloader")()
        self._batches = self._read()

    def __iter__(self) -> InputGenerator:
        """Starts anew."""
        self._batches = self._read()
        return self

    def __next__(self) -> dict[str, Any]:
        """The next batch."""
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


def get_dummy_input(
    model_info: ModelInfo,
    data_module: DataModule,
    task: str,
    device: str | torch.device = "cpu",
) -> dict[str, Any]:
    """One training batch as the inputs of a model, on `device`."""
    batch = next(InputGenerator(model_info, data_module, task, "train"))
    return {name: value.to(device) for name, value in batch.items()}


def get_cf_args(model_info: ModelInfo, task: str, model: nn.Module) -> dict[str, Any]:
    """Arguments of `forward` to fix at capture: `MaseGraph(model, cf_args=...)`.

    Args:
        model_info: of `chop.models.get_model_info`.
        task: `cls` or `lm`, or what `chop.models.load_model` calls them.
        model: the model.

    Returns: of a model of texts the defaults of all arguments but `input_ids`, `attention_mask` and
        `labels`; of others nothing.

    Raises:
        ConfigError: there is no such task.
    """
    _check("task", task, (*LANGUAGE_MODELING, *CLASSIFICATION))
    if not model_info.is_nlp_model:
        return {}
    empty = inspect.Parameter.empty
    parameters = inspect.signature(model.forward).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not empty and p.name not in FED}


def _check(name: str, value: str, choices: Sequence[str]) -> None:
    check_known(value, choices, f"{name}: got")
