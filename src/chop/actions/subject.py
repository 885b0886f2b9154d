"""What a job works on: a trained model and the rows to train, calibrate and test it with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from chop.data import get_tokenized_dataset, load_dataset, num_labels
from chop.errors import ConfigError, did_you_mean
from chop.models import BUILTIN_MODELS, load_model
from chop.train import Rows, calibration_batches, default_dataset, fit, load_trained, read_rows

if TYPE_CHECKING:
    from datasets import DatasetDict

BUILTIN_QAT = {"qat_lr": 3e-3, "qat_epochs": 15}
CHECKPOINT_LR = 1e-4
CHECKPOINT_QAT = {"qat_lr": CHECKPOINT_LR, "qat_epochs": 1}
EXAMPLE_ROWS = 3


@dataclass(frozen=True)
class Subject:
    """A trained model with its data.

    Attributes:
        model: in eval mode, on `device`.
        dataset: name of the data set.
        train: rows to train and calibrate on.
        test: rows to measure on.
        device: where everything runs.
        qat_lr: a learning rate that suits training it further.
        qat_epochs: passes over the training rows that usually suffice.
    """

    model: nn.Module
    dataset: str
    train: Rows
    test: Rows
    device: torch.device
    qat_lr: float
    qat_epochs: int

    @property
    def chance(self) -> float:
        """Accuracy of always answering the commonest class of the test rows."""
        counts = Counter(self.test.labels.tolist())
        return max(counts.values()) / len(self.test)

    def example(self) -> dict[str, Tensor]:
        """A few rows as the model takes them, without labels."""
        batch = next(calibration_batches(self.model, self.train, rows=EXAMPLE_ROWS))
        return {name: column for name, column in batch.items() if name != "labels"}


def load_subject(
    model: str,
    dataset: str | None = None,
    *,
    train_epochs: int = 0,
    batch_size: int = 64,
    limit: int | None = None,
    max_length: int | None = None,
    seed: int = 0,
    device: str | None = None,
) -> Subject:
    """Loads, or trains, a model and its data.

    Args:
        model: built-in name, local Hugging Face folder or hub name.
        dataset: built-in name, local folder or hub name; None takes the built-in model's own.
        train_epochs: fine-tunes a model that is not built in.
        batch_size: rows of a training step.
        limit: keeps that many rows of each split.
        max_length: cuts texts to that many tokens.
        seed: of training.
        device: None takes a GPU where there is one.

    Raises:
        ConfigError: model and data set do not go together.
        UnavailableError: model or data set are not there.
    """
    place = _device(device)
    if model in BUILTIN_MODELS:
        own = BUILTIN_MODELS[model].dataset
        if dataset not in (None, own):
            raise ConfigError(
                f"built-in model '{model}' is trained on '{own}', not on '{dataset}'; give a "
                "model of your own by --model FOLDER."
            )
        data = default_dataset(model, limit=limit)
        trained = load_trained(model, seed=seed, progress=True).to(place)
        rows = read_rows(data["train"]), read_rows(data["test"])
        return Subject(trained, own, *rows, place, **BUILTIN_QAT)
    loaded, data = _checkpoint(model, dataset, limit, max_length)
    rows = read_rows(data["train"]), read_rows(data["test"])
    if train_epochs:
        options = {"epochs": train_epochs, "batch_size": batch_size, "seed": seed}
        fit(loaded, rows[0], lr=CHECKPOINT_LR, device=place, progress="fine-tuning", **options)
    return Subject(loaded.to(place).eval(), str(dataset), *rows, place, **CHECKPOINT_QAT)


def _device(name: str | None) -> torch.device:
    chosen = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=chosen).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device '{chosen}' cannot be used here: {reason}") from None


def _checkpoint(
    model: str, dataset: str | None, limit: int | None, max_length: int | None
) -> tuple[nn.Module, DatasetDict]:
    if dataset is None:
        raise ConfigError(
            f"model '{model}' is not built in and needs a data set: give --dataset, or for "
            f"a built-in model {did_you_mean(model, BUILTIN_MODELS)}"
        )
    data = load_dataset(dataset, limit=limit)
    loaded = load_model(model, num_labels=num_labels(data))
    if loaded.main_input_name == "input_ids":
        data = get_tokenized_dataset(data, model, max_length=max_length)
    return loaded, data
