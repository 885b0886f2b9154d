"""A few training rows, as a model takes them, to look at what flows through it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from chop.train.model_io import LABELS, input_columns
from chop.train.rows import Rows, padding_token, read_rows


def calibration_batches(
    model: nn.Module,
    dataset: Any,
    *,
    rows: int = 256,
    batch_size: int = 32,
    with_labels: bool = False,
) -> Iterator[dict[str, Tensor]]:
    """Batches of inputs for `model`, on its device, from rows spread evenly over the data set.

    Args:
        model: says which columns it takes, see `input_columns`.
        dataset: rows with labels, texts tokenised; of a DatasetDict, its `train`.
        rows: how many to take.
        batch_size: rows of a batch.
        with_labels: adds `labels`, int64 (batch_size,), whether the model takes them or not.
    Yields: the inputs by name, each (batch_size, ...).
    Raises:
        ConfigError: no input of the model can be fed.
    """
    table = read_rows(dataset["train"] if isinstance(dataset, dict) else dataset)
    chosen = _spread(table, rows)
    columns = input_columns(model, [*chosen.columns, LABELS])
    device = next(model.parameters(), torch.empty(0)).device
    for batch in chosen.batches(batch_size, pad_id=padding_token(model)):
        fed = {**columns, LABELS: LABELS} if with_labels else columns
        yield {name: batch[column].to(device) for name, column in fed.items()}


def _spread(table: Rows, rows: int) -> Rows:
    index = torch.linspace(0, len(table) - 1, min(rows, len(table))).long()
    return table.take(index)
