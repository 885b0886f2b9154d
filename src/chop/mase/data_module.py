"""Data module: loaders of a data set's batches for plain training loops.

Shapes: B rows of a batch, T tokens of its longest text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from chop.config import Range, with_checked_arguments
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
from chop.data.tokenizer import get_tokenizer as find_tokenizer
from chop.errors import ConfigError
from chop.models import find_model_info, get_tokenizer
from chop.train.model_io import LABELS
from chop.train.rows import pad

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedTokenizerBase

VALIDATION_SHARE = 0.1


class MaseDataModule:
    """Data set with training, validation and test rows.

    Text batches are mappings of `input_ids`, `attention_mask` and others (B, T) and `labels` (B,).
    Batches of images (B, C, H, W) and vectors (B, F) are pairs `(x, labels)`.

    Validation rows are a tenth of the training rows, drawn with a fixed seed, so that the test rows
    stay unseen until the end. There is no data augmentation.

    Args:
        name: name for `chop.data.load_dataset`: a built-in name, a local folder, or a hub name.
        batch_size: rows of a batch.
        num_workers: processes that read rows; 0 reads in this one.
        max_token_len: maximum number of tokens per text; by default the model's limit.
        tokenizer: tokenizer of texts, or its name; by default that of `model_name`.
        model_name: model for the data, which determines tokenizer and image size.
        load_from_cache_file: ignored; the cache is keyed by content.
        limit: maximum number of rows of each split, drawn with a fixed seed.

    Attributes: `train_dataset`, `val_dataset` and `test_dataset`, after `setup`.

    Raises:
        ConfigError: if an argument has the wrong type or range.
    """

    @with_checked_arguments
    def __init__(
        self,
        name: str,
        batch_size: Annotated[int, Range(1)],
        num_workers: Annotated[int, Range(0)] = 0,
        max_token_len: int | None = None,
        tokenizer: PreTrainedTokenizerBase | str | None = None,
        model_name: str | None = None,
        load_from_cache_file: bool = True,
        *,
        limit: int | None = None,
    ) -> None:
        self.name, self.batch_size, self.num_workers = name, batch_size, num_workers
        self.max_token_len, self.model_name, self.limit = max_token_len, model_name, limit
        self._tokenizer = tokenizer
        self.train_dataset: Dataset | None = None
        self.val_dataset: Dataset | None = None
        self.test_dataset: Dataset | None = None

    def prepare_data(self) -> None:
        """Downloads the data set, unless it is built in or cached.

        Raises:
            UnavailableError: if it has to be downloaded and the hub cannot be reached.
        """
        _ = self._loaded

    def setup(self, stage: str | None = None) -> None:
        """Creates the splits and tokenizes texts; `stage` is ignored.

        Raises:
            ConfigError: if there is only one training row, so that none remains for validation.
        """
        splits = self._as_tensors()
        if len(splits["train"]) < 2:
            raise ConfigError(
                f"data set '{self.name}': expected at least two training rows, got 1."
            )
        parts = splits["train"].train_test_split(test_size=VALIDATION_SHARE, seed=0)
        self.train_dataset, self.val_dataset = parts["train"], parts["test"]
        self.test_dataset = splits["test"]

    @cached_property
    def dataset_info(self) -> DatasetInfo:
        """Description of the data for building a model."""
        return describe_dataset(self.name, self._loaded)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Tokenizer of texts.

        Raises:
            ConfigError: if neither a tokenizer nor a model was given.
        """
        if self._tokenizer is not None:
            return find_tokenizer(self._tokenizer)
        name = self.model_name or self._own_tokenizer()
        if name is None:
            raise ConfigError(
                f"data set '{self.name}' contains texts: pass tokenizer= or model_name=."
            )
        return get_tokenizer(name)

    def _own_tokenizer(self) -> str | None:
        """Returns the tokenizer name of a built-in data set of texts."""
        builtin = builtin_dataset(self.name)
        return f"{PREFIX}{builtin}" if builtin in TEXT_DATASETS else None

    def train_dataloader(self) -> DataLoader[Any]:
        """Returns batches of the training rows, shuffled by torch's global generator."""
        return self._loader(self.train_dataset, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Returns batches of the validation rows in a fixed order."""
        return self._loader(self.val_dataset)

    def test_dataloader(self) -> DataLoader[Any]:
        """Returns batches of the test rows in a fixed order."""
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
    """Pads rows of tokens to a mapping of tensors."""
    dtypes = {name: torch.int64 if name == LABELS else None for name in rows[0]}
    columns = {
        name: [torch.as_tensor(row[name], dtype=dtype) for row in rows]
        for name, dtype in dtypes.items()
    }
    return {name: pad(name, column, pad_id) for name, column in columns.items()}


def _pairs(rows: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    """Stacks rows of one input and a label to (x, labels)."""
    label = required_label_column(list(rows[0]))
    column = next(name for name in rows[0] if name != label)
    x = torch.stack([torch.as_tensor(row[column], dtype=torch.float32) for row in rows])
    return x, torch.tensor([int(row[label]) for row in rows])
