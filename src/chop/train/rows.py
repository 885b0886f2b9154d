"""A labelled data set read once into tensors, and handed out in batches.

Tokenised texts are cut into batches of similar length and padded within the batch, which is
several times cheaper than padding all of them to one length.

Shapes: N rows, B rows of a batch, T tokens of its longest row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from chop.data import label_column
from chop.errors import ConfigError
from chop.train.calling import LABELS

if TYPE_CHECKING:
    from datasets import Dataset

# Texts are grouped by length within so many batches, so that batches still differ by epoch.
BATCHES_PER_POOL = 50


@dataclass(frozen=True)
class Rows:
    """The columns of a labelled data set.

    Attributes:
        columns: a tensor (N, ...) each, or a list of N tensors of differing length.
        labels: int64 (N,).
    """

    columns: dict[str, Tensor | list[Tensor]]
    labels: Tensor

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.labels)

    def take(self, index: Tensor) -> Rows:
        """The rows of that index, integers (n,), in its order."""
        columns = {name: _take(column, index) for name, column in self.columns.items()}
        return Rows(columns, self.labels[index])

    def batches(
        self, batch_size: int, *, pad_id: int = 0, shuffle: torch.Generator | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """Every row once, in batches of `batch_size`, `labels` among the columns.

        Args:
            batch_size: rows of a batch; the last may have fewer.
            pad_id: fills `input_ids`; all other token columns are filled with zeros.
            shuffle: draws the order; without it the order is fixed, and for texts by length.
        """
        for index in self._order(batch_size, shuffle):
            batch = {
                name: column[index]
                if isinstance(column, Tensor)
                else pad(name, [column[i] for i in index], pad_id)
                for name, column in self.columns.items()
            }
            yield {**batch, LABELS: self.labels[index]}

    def _order(self, batch_size: int, shuffle: torch.Generator | None) -> list[Tensor]:
        n = len(self)
        order = torch.arange(n) if shuffle is None else torch.randperm(n, generator=shuffle)
        lengths = self._lengths()
        if lengths is None:
            return list(order.split(batch_size))
        pool = n if shuffle is None else batch_size * BATCHES_PER_POOL
        order = torch.cat([part[lengths[part].argsort(stable=True)] for part in order.split(pool)])
        batches = list(order.split(batch_size))
        if shuffle is None:
            return batches
        return [batches[i] for i in torch.randperm(len(batches), generator=shuffle)]

    def _lengths(self) -> Tensor | None:
        ragged = (column for column in self.columns.values() if not isinstance(column, Tensor))
        column = next(ragged, None)
        return None if column is None else torch.tensor([len(row) for row in column])


def _take(column: Tensor | list[Tensor], index: Tensor) -> Tensor | list[Tensor]:
    return column[index] if isinstance(column, Tensor) else [column[i] for i in index]


def read_rows(dataset: Dataset | Rows | Any) -> Rows:
    """Reads a data set into memory.

    Args:
        dataset: a `datasets.Dataset`, or anything with a length whose items are mappings; with
            a column `labels` or `label`. Columns of text or pictures are left out.
    Raises:
        ConfigError: no label column, no column of numbers, or no rows.
    """
    if isinstance(dataset, Rows):
        return dataset
    table = _columns(dataset)
    label = label_column(list(table))
    inputs = {name: column for name, column in table.items() if name != label}
    if label is None or not inputs or len(table[label]) == 0:
        raise ConfigError(
            "expected rows with a column 'labels' or 'label' and at least one column of numbers "
            f"(texts have to be tokenised first), got {len(dataset)} rows with {list(table)}."
        )
    return Rows(inputs, torch.as_tensor(table[label]).long())


def _columns(dataset: Any) -> dict[str, Tensor | list[Tensor]]:
    # A transform of the user's makes its columns row by row, and they are not in the table.
    if hasattr(dataset, "with_format") and dataset.format["type"] != "custom":
        names = [name for name in dataset.column_names if _is_numeric(dataset, name)]
        table = dataset.select_columns(names).with_format("numpy")[:]
        return {name: _as_tensors(table[name]) for name in names}
    items = [dataset[i] for i in range(len(dataset))]
    names = items[0].keys() if items else []
    return {name: _as_tensors([np.asarray(item[name]) for item in items]) for name in names}


def _is_numeric(dataset: Dataset, name: str) -> bool:
    feature = dataset.features[name]
    while hasattr(feature, "feature"):
        feature = feature.feature
    return str(getattr(feature, "dtype", "")).startswith(("int", "uint", "float", "bool"))


def _as_tensors(values: Any) -> Tensor | list[Tensor]:
    rows = [np.asarray(row) for row in values]
    if len({row.shape for row in rows}) <= 1:
        return torch.from_numpy(np.stack(rows)) if rows else torch.empty(0)
    return [torch.from_numpy(row) for row in rows]


def pad(name: str, rows: list[Tensor], pad_id: int) -> Tensor:
    """Stacks the rows of one column, padded to the longest: (B, T, ...).

    Args:
        name: the column's; `input_ids` is filled with `pad_id`, any other with zeros.
        rows: (T_i, ...) each.
        pad_id: the padding token.
    """
    value = pad_id if name == "input_ids" else 0
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


def padding_token(model: nn.Module) -> int:
    """The padding token that a model's configuration names, else 0."""
    return getattr(getattr(model, "config", None), "pad_token_id", None) or 0
