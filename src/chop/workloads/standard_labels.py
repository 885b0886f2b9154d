"""Standardization of regression labels to the scale of the model's training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from chop.errors import ConfigError
from chop.train import Rows, Task


def with_standard_labels(
    rows: Mapping[str, Rows], task: Task, mean: float | None, std: float | None
) -> dict[str, Rows]:
    """Standardizes the labels of rows by split: `(label - mean) / std`.

    Args:
        rows: rows by split.
        task: task of the rows.
        mean: mean to subtract; labels are unchanged if both are None.
        std: standard deviation to divide by.
    Raises:
        ConfigError: if the task is not a regression.
    """
    if mean is None and std is None:
        return dict(rows)
    if task.name != "regression":
        raise ConfigError(
            f"label_mean and label_std: they apply to numbers, and the task is '{task.name}'; "
            "--task regression treats labels as numbers."
        )
    standardized = {}
    for name, split in rows.items():
        labels = torch.as_tensor(split.labels)
        numbers = labels if labels.is_floating_point() else labels.float()
        standardized[name] = replace(split, labels=(numbers - (mean or 0.0)) / (std or 1.0))
    return standardized
