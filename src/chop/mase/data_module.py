"""Data module: a data set as loaders of batches, for plain training loops.

Shapes: B rows of a batch, T tokens of its longest text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from chop.data import (
    TEXT_DATASETS,
    DatasetInfo,
    describe_dataset,
    get_tokenized_dataset,
    load_dataset,
    required_label_column,
    with_pixels,
)
from chop.data.builtin_names import PREFIX
from chop.data.load import builtin_dataset
from chop.errors import ConfigError
from chop.models import find_model_info, get_tokenizer
from chop.train.model_io import LABELS
from chop.train.rows import pad

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedTokenizerBase

VALIDATION_SHARE = 0.1


class MaseDataModule:
    """A data set, cut into training, validation and test rows.

    Batches of texts are mappings of `input_ids`, `attention_mask` and the like (B, T) and `labels`
    (B,); those of pictures (B, C, H, W) and vectors (B, F) are pairs `(x, labels)`.

    The validation rows are a tenth of the training rows, drawn by a fixed seed: the test rows stay
    unseen until the end. Nothing is augmented.

    Args:
        name: what `chop.data.load_dataset` takes: a built-in name, a local folder, a hub name.
        batch_size: rows of a batch.
        num_workers: processes that read rows; 0 reads in this one.
        max_token_len: texts are cut to it; default, the model's limit.
        tokenizer: of texts; default, that of `model_name`.
        model_name: the model that the data is for: its tokenizer, its size of pictures.
        load_from_cache_file: accepted for MASE's sake; the cache is keyed by content.
        limit: keeps that many rows of each split, drawn by a fixed seed.

    Attributes: `train_dataset`, `val_dataset` and `test_dataset`, after `setup`.

    Raises:
        ConfigError: a batch size below one.
    """

    def __init__(
        self,
        name: str,
        batch_size: int,
        num_workers: int = 0,
        max_token_len: int | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        model_name: str | None = None,
        load_from_cache_file: bool = True,
        *,
        limit: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size: expected at least 1, got {batch_size}.")
        self.name, self.batch_size, self.num_workers = name, batch_size, num_workers
        self.max_token_len, self.model_name, self.limit = max_token_len, model_name, limit
        self._tokenizer = tokenizer
        self.train_dataset: Dataset | None = None
        self.val_dataset: Dataset | None = None
        self.test_dataset: Dataset | None = None

    def prepare_data(self) -> None:
        """Fetches the data set, unless it is built in or in the cache.

        Raises:
            UnavailableError: it has to be fetched and the hub cannot be reached.
        """
        _ = self._loaded

    def setup(self, stage: str | None = None) -> None:
        """Cuts the splits and tokenizes texts; `stage` is accepted for MASE's sake.

        Raises:
            ConfigError: there is only one training row, so none is left to validate on.
        """
        splits = self._as_tensors()
        if len(splits["train"]) < 2:
            raise ConfigError(f"data set '{self.name}': expected two training rows or more, got 1.")
        parts = splits["train"].train_test_split(test_size=VALIDATION_SHARE, seed=0)
        self.train_dataset, self.val_dataset = parts["train"], parts["test"]
        self.test_dataset = splits["test"]

    @cached_property
    def dataset_info(self) -> DatasetInfo:
        """What a model has to know of the data."""
        return describe_dataset(self.name, self._loaded)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Of texts.

        Raises:
            ConfigError: neither a tokenizer nor a model was given.
        """
        if self._tokenizer is not None:
            return self._tokenizer
        name = self.model_name or self._own_tokenizer()
        if name is None:
            raise ConfigError(
                f"data set '{self.name}' holds texts: give tokenizer= or model_name=."
            )
        return get_tokenizer(name)

    def _own_tokenizer(self) -> str | None:
        """Returns the tokenizer name of a built-in data set of texts."""
        builtin = builtin_dataset(self.name)
        return f"{PREFIX}{builtin}" if builtin in TEXT_DATASETS else None

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches of the training rows, in an order drawn from torch's global generator."""
        return self._loader(self.train_dataset, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Batches of the validation rows, in a fixed order."""
        return self._loader(self.val_dataset)

    def test_dataloader(self) -> DataLoader[Any]:
        """Batches of the test rows, in a fixed order."""
        return self._loader(self.test_dataset)

    @cached_property
    def _loaded(self) -> DatasetDict:
        return load_dataset(self.name, limit=self.limit)

    def _as_tensors(self) -> DatasetDict:
        if self.dataset_info.kind == "nlp":
            return get_tokenized_dataset(
                self._loaded, self.tokenizer, max_length=self.max_token_len
            )
        model = find_model_info(self.model_name or "")
        return with_pixels(self._loaded, self.dataset_info, model.image_size if model else None)

    def _loader(self, split: Dataset | None, *, shuffle: bool = False) -> DataLoader[Any]:
        if split is None:
            raise ConfigError("MaseDataModule: call setup() first.")
        return DataLoader(
            split,
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            collate_fn=self._collate(),
        )

    def _collate(self) -> Callable[[list[dict[str, Any]]], Any]:
        if self.dataset_info.kind == "nlp":
            return partial(_padded, pad_id=self.tokenizer.pad_token_id or 0)
        return _pairs


def _padded(rows: list[dict[str, Any]], pad_id: int) -> dict[str, Tensor]:
    """Rows of tokens -> a mapping of padded tensors."""
    dtypes = {name: torch.int64 if name == LABELS else None for name in rows[0]}
    columns = {
        name: [torch.as_tensor(row[name], dtype=dtype) for row in rows]
        for name, dtype in dtypes.items()
    }
    return {name: pad(name, column, pad_id) for name, column in columns.items()}


def _pairs(rows: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    """Rows of one input and a label -> (x, labels)."""
    label = required_label_column(list(rows[0]))
    column = next(name for name in rows[0] if name != label)
    x = torch.stack([torch.as_tensor(row[column], dtype=torch.float32) for row in rows])
    return x, torch.tensor([int(row[label]) for row in rows])
