"""Reading of unlabeled rows: tensors, lists of rows or batches, and data loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from chop.data import label_column
from chop.errors import ConfigError
from chop.train.feed import eval_mode
from chop.train.given.arrays import dense
from chop.train.given.frames import is_frame, is_series
from chop.train.given.reading import in_order, read_mapping, rows_of_batch, take_items
from chop.train.given.row_checks import check_columns
from chop.train.model_io import LABELS, POSITION, input_columns, read_output
from chop.train.rows import Rows, read_rows
from chop.train.tasks import JUDGED_TASK
from chop.train.text_labels import with_numbered_texts
from chop.train.user_code import read_items

FIRST = POSITION.format(0)


def read_inputs(model: nn.Module, data: Any) -> Rows:
    """Reads rows with or without labels. Missing labels become zeros.

    Args:
        model: called on the first item of a list to distinguish rows from batches.
        data: any input of `read_rows`; a tensor, an array, a frame or a mapping of columns; or a
            list, an iterator or a DataLoader of rows or batches, each a tensor, a tuple of one, or
            a mapping.
    Raises:
        ConfigError: if the kind of data is unknown, or there are no rows.
    """
    if isinstance(data, Mapping) and "train" in data:
        data = data["train"]
    if isinstance(data, Mapping) and data and {*data} <= {"test", "validation"}:
        raise ConfigError(f"data: expected a split train, got {' and '.join(data)}.")
    if isinstance(data, TensorDataset) and len(data.tensors) == 1:
        data = data.tensors[0]
    if isinstance(data, tuple) and len(data) == 1:
        (data,) = data
    data = with_numbered_texts({"": dense(data)})[0][""]
    if is_frame(data):
        is_labeled = label_column(list(data.columns)) is not None
        return read_rows(data if is_labeled else (data, np.zeros(len(data))))
    if is_series(data) or isinstance(data, Tensor | np.ndarray):
        return _zeros({FIRST: data})
    if isinstance(data, Mapping):
        return _zeros(data) if label_column(list(data)) is None else read_rows(data)
    if isinstance(data, DataLoader):
        return _from_loader(data)
    if isinstance(data, Iterator):
        data = take_items(data)
    if isinstance(data, list):
        return _from_list(model, data)
    return read_rows(data, JUDGED_TASK)


def _zeros(columns: Mapping[str, Any]) -> Rows:
    """Adds zeros as labels to columns whose labels are not used."""
    read = read_mapping(columns)
    check_columns(read)
    count = len(next(iter(read.values()), ()))
    if not count:
        raise ConfigError("data: expected rows with the model's inputs, got none.")
    return read_rows({**read, LABELS: torch.zeros(count)})


def _from_loader(loader: DataLoader[Any]) -> Rows:
    """Returns the rows of all batches, labeled if the batches are."""
    items = list(read_items("data", in_order(loader), loader.dataset))
    if not items or _named(items[0]) is None or loader.batch_sampler is None:
        return read_rows(loader)
    return _joined([values for item in items if (values := _named(item)) is not None], True)


def _from_list(model: nn.Module, items: list[Any]) -> Rows:
    if not items:
        raise ConfigError("data: expected rows with the model's inputs, got an empty list.")
    if all(isinstance(item, int | float) for item in items):
        return _zeros({FIRST: items})
    if _are_lists_of_numbers(items):
        return _zeros({FIRST: [torch.tensor(item) for item in items]})
    named = [_named(item) or _without_labels(item) for item in items]
    known = [each for each in named if each is not None]
    if known and len(known) < len(items):
        unknown = [x is None for x in named]
        first, other = unknown.index(False), unknown.index(True)
        raise ConfigError(
            f"data: item {other} is {_describe(items[other])}, and item {first} is "
            f"{_describe(items[first])}; expected items of one kind."
        )
    if not known:
        return read_rows(items)
    is_labeled = _named(items[0]) is None
    if is_labeled and np.ndim(items[0][1]) == 0:
        return read_rows(items)
    return _joined(known, _is_batch(model, known))


def _are_lists_of_numbers(items: list[Any]) -> bool:
    return all(
        isinstance(item, list) and item and all(isinstance(x, int | float) for x in item)
        for item in items
    )


def _named(item: Any) -> Mapping[str, Any] | None:
    """Returns the inputs of an unlabeled item by name; None for a labeled item."""
    if isinstance(item, tuple | list) and len(item) == 1:
        (item,) = item
    if isinstance(item, Mapping):
        return item if label_column(list(item)) is None else None
    return {FIRST: item} if isinstance(item, Tensor | np.ndarray) else None


def _without_labels(item: Any) -> Mapping[str, Any] | None:
    """Returns the inputs of a labeled pair or mapping."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        return None
    return item[0] if isinstance(item[0], Mapping) else _named(item[0])


def _describe(item: Any) -> str:
    return "None" if item is None else f"a {type(item).__name__}"


def _joined(items: list[Mapping[str, Any]], are_batches: bool) -> Rows:
    names = list(items[0])
    if any(list(item) != names for item in items):
        raise ConfigError(f"data: expected the inputs of the first item, {names}, in each item.")
    rows = [row for x in items for row in rows_of_batch(x)] if are_batches else items
    return _zeros({name: [row[name] for row in rows] for name in names})


def _is_batch(model: nn.Module, items: list[Mapping[str, Any]]) -> bool:
    """Returns true if items are batches. One-dimensional items are rows; others are tried on the
    model.
    """
    first = {name: torch.as_tensor(x) for name, x in items[0].items()}
    if any(x.dim() == 0 for x in first.values()) or len({len(x) for x in first.values()}) > 1:
        return False
    if all(x.dim() == 1 for x in first.values()):
        return False
    one_row = {name: x[None] for name, x in first.items()}
    return takes_batch(model, first) or not takes_batch(model, one_row)


def takes_batch(model: nn.Module, batch: Mapping[str, Tensor]) -> bool:
    """Returns true if the output of a model has as many rows as the batch."""
    place = next(model.parameters(), torch.empty(0))
    try:
        with torch.no_grad(), torch.random.fork_rng(), eval_mode(model):
            fed = {
                name: batch[column].to(place.device)
                for name, column in input_columns(model, batch).items()
            }
            kind = place.dtype
            fed = {n: x.to(kind) if x.is_floating_point() else x for n, x in fed.items()}
            answer = read_output(model(**fed))[1]
        return len(answer) == len(next(iter(batch.values())))
    except (Exception, SystemExit):  # whatever the model raises for inputs of a wrong shape
        return False
