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

    from chop.actions.compress import CompressConfig

BUILTIN_QAT_LR, CHECKPOINT_QAT_LR = 3e-3, 1e-4
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
    """

    model: nn.Module
    dataset: str
    train: Rows
    test: Rows
    device: torch.device
    qat_lr: float

    @property
    def chance(self) -> float:
        """Accuracy of always answering the commonest class of the test rows."""
        counts = Counter(self.test.labels.tolist())
        return max(counts.values()) / len(self.test)

    def example(self) -> dict[str, Tensor]:
        """A few rows as the model takes them, without labels."""
        batch = next(calibration_batches(self.model, self.train, rows=EXAMPLE_ROWS))
        return {name: column for name, column in batch.items() if name != "labels"}


def load_subject(config: CompressConfig) -> Subject:
    """Loads, or trains, the model of a job and its data.

    Raises:
        ConfigError: a model that is not built in comes without a data set.
        UnavailableError: model or data set are not there.
    """
    device = torch.device(config.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if config.model in BUILTIN_MODELS:
        model, data, name = _builtin(config)
    else:
        model, data, name = _checkpoint(config)
    train, test = read_rows(data["train"]), read_rows(data["test"])
    model = model.to(device).eval()
    if config.train_epochs and config.model not in BUILTIN_MODELS:
        fit(
            model,
            train,
            epochs=config.train_epochs,
            lr=CHECKPOINT_QAT_LR,
            batch_size=config.batch_size,
            seed=config.seed,
            device=device,
            progress="fine-tuning",
        )
    qat_lr = BUILTIN_QAT_LR if config.model in BUILTIN_MODELS else CHECKPOINT_QAT_LR
    return Subject(model, name, train, test, device, qat_lr)


def _builtin(config: CompressConfig) -> tuple[nn.Module, DatasetDict, str]:
    own = BUILTIN_MODELS[config.model].dataset
    if config.dataset not in (None, own):
        raise ConfigError(
            f"built-in model '{config.model}' is trained on '{own}', not on '{config.dataset}'; "
            "give a model of your own by --model FOLDER."
        )
    data = default_dataset(config.model, limit=config.limit)
    return load_trained(config.model, seed=config.seed, progress=True), data, own


def _checkpoint(config: CompressConfig) -> tuple[nn.Module, DatasetDict, str]:
    if config.dataset is None:
        raise ConfigError(
            f"model '{config.model}' is not built in and needs a data set: give --dataset, or for "
            f"a built-in model {did_you_mean(config.model, BUILTIN_MODELS)}"
        )
    data = load_dataset(config.dataset, limit=config.limit)
    model = load_model(config.model, num_labels=num_labels(data))
    if model.main_input_name == "input_ids":
        data = get_tokenized_dataset(data, config.model, max_length=config.max_length)
    return model, data, str(config.dataset)
