"""Conversion of labels to classes and numbers.

Shapes: N rows, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chop.base.notices import assume
from chop.errors import ConfigError
from chop.train.given.reading import Column
from chop.train.task import Task, are_one_hot
from chop.train.tasks import BINARY, CLASSIFICATION


def read_labels(column: Column) -> Column:
    """Converts labels to integers if they are classes, otherwise to floats.

    Raises:
        ConfigError: if labels are missing, infinite or complex, or images differ in size.
    """
    if isinstance(column, Tensor):
        return _as_labels(column)
    if any(row.dim() > 1 for row in column):
        sizes = list(dict.fromkeys(tuple(row.shape) for row in column))
        raise ConfigError(
            f"labels: got images of different sizes, {sizes[0]} and {sizes[1]}; scale images "
            "and masks to one size (masks with nearest-pixel interpolation)."
        )
    return [_as_labels(row) for row in column]


def _as_labels(column: Tensor) -> Tensor:
    if column.is_complex():
        raise ConfigError(f"labels: got complex numbers ({column.dtype}), expected real ones.")
    one = column.squeeze(-1) if column.dim() == 2 and column.shape[1] == 1 else column
    if not column.is_floating_point():
        return one.long()
    missing = int(column.isnan().sum())
    if missing:
        raise ConfigError(
            f"labels: {missing} of {len(column)} rows have no label (NaN); remove these rows."
        )
    endless = int(column.isinf().sum())
    if endless:
        raise ConfigError(
            f"labels: {endless} of {len(column)} rows have infinite values; remove these rows."
        )
    return one.long() if _are_classes(one) else column


def _are_classes(numbers: Tensor) -> bool:
    unique = numbers.unique()
    return numbers.dim() == 1 and torch.equal(unique, torch.arange(len(unique), dtype=unique.dtype))


def with_classes(labels: Column, task: Task | None) -> Column:
    """Converts one-hot labels to classes if the task has one class per row."""
    if task is None or task.name not in (CLASSIFICATION.name, BINARY) or not are_one_hot(labels):
        return labels
    assert isinstance(labels, Tensor), "one-hot labels are one tensor"
    if task.name == BINARY and labels.shape[1] != 2:
        return labels
    assume("Labels are one-hot: the class of a row is the position of its 1.")
    return labels.argmax(1)
