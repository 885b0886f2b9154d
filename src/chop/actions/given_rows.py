"""Rows that `chop.compress` is given: their splits, the column and the scale of their labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
from torch import nn

from chop.data.load import joined_labels
from chop.errors import ConfigError, check_known
from chop.train.frames import is_frame, to_array
from chop.train.unlabeled import read_inputs
from chop.workloads.pictures import SETTINGS
from chop.workloads.settings import WorkloadConfig
from chop.workloads.standard_labels import with_standard_labels
from chop.workloads.workload import Workload

LABELS = "labels"
OF_FILES = (
    *("model", "dataset", "weights", "tokenizer", "text_column", "max_length", "stride", "limit"),
    *("train_epochs", *SETTINGS),
)
"""Settings that say which model and rows are read, and how."""


def check_are_used(settings: Iterable[str]) -> None:
    """Checks that no setting is given that says how files are read, or `label`.

    Raises:
        ConfigError: there is one; the model and its rows are given as they are.
    """
    for name in settings:
        if name == "label":
            raise ConfigError("chop.compress: unknown key 'label': did you mean 'label_column'?")
        if name in OF_FILES:
            raise ConfigError(
                f"chop.compress: {name} is for models and data that are read from files; here "
                "model and data are used as given."
            )


def with_label_column(data: Any, label: str | None) -> Any:
    """Renames the column of the labels to `labels`; several columns of numbers become one.

    Args:
        data: frame, mapping of columns, or data set of `datasets`; or a mapping of these by split.
        label: name of the column, or several with commas between them; None leaves all as it is.
    Raises:
        ConfigError: there is no such column, or the rows have no columns with names.
    """
    if label is None or data is None:
        return data
    if isinstance(data, str | PathLike):
        raise ConfigError(
            f"data: expected rows, got the name '{data}': pandas.read_csv and the like read it."
        )
    if isinstance(data, Mapping) and "train" in data and label != "train":
        return {name: with_label_column(split, label) for name, split in data.items()}
    names = list(data) if isinstance(data, Mapping) else getattr(data, "column_names", None)
    names = list(data.columns) if is_frame(data) else names
    if not isinstance(names, list):
        raise ConfigError(
            f"label_column: expected a frame, a mapping of columns or a data set, got "
            f"{type(data).__name__}; give (inputs, labels)."
        )
    several = [name.strip() for name in label.split(",")]
    if len(several) > 1 and label not in names:
        return _with_joined_labels(data, several, names)
    check_known(label, list(map(str, names)), "label column")
    others = [name for name in ("labels", "label") if name in names and name != label]
    if is_frame(data):
        return data.drop(columns=others).rename(columns={label: LABELS})
    if isinstance(data, Mapping):
        kept = {name: column for name, column in data.items() if name not in others}
        return {LABELS if name == label else name: column for name, column in kept.items()}
    data = data.remove_columns(others)
    return data if label == LABELS else data.rename_column(label, LABELS)


def _with_joined_labels(data: Any, labels: Sequence[str], names: Sequence[str]) -> Any:
    """The rows with several columns of numbers as one column of labels, (rows, columns)."""
    if not is_frame(data) and not isinstance(data, Mapping):
        return joined_labels(data, labels)
    for name in labels:
        check_known(name, list(map(str, names)), "label column")
        if labels.count(name) > 1:
            raise ConfigError(f"label column '{name}': was given twice; give it once.")
    left_out = {*labels, "labels", "label"}
    if is_frame(data):
        joined = np.stack([to_array(data[name], name) for name in labels], 1)
        return data.drop(columns=[name for name in names if name in left_out]), joined
    kept = {name: column for name, column in data.items() if name not in left_out}
    return {**kept, LABELS: np.stack([np.asarray(data[name]) for name in labels], 1)}


def with_scale(workload: Workload, config: WorkloadConfig) -> Workload:
    """The workload with labels as `label_mean` and `label_std` say."""
    rows = {"train": workload.train, "test": workload.test}
    if workload.validation is not None:
        rows["validation"] = workload.validation
    found = with_standard_labels(rows, workload.task, config.label_mean, config.label_std)
    train, test, validation = found["train"], found["test"], found.get("validation")
    return replace(workload, train=train, test=test, validation=validation)


def rows_by_split(data: Any, test: Any) -> dict[str, Any]:
    """Rows by split, as `Workload.of` takes them."""
    if isinstance(data, Mapping) and "train" in data:
        unknown = sorted(data.keys() - {"train", "test", "validation"})
        if unknown:
            raise ConfigError(
                f"data: expected the splits train, test and validation, got '{unknown[0]}'."
            )
        splits = dict(data)
    else:
        splits = {"train": data}
    if test is not None:
        splits["test"] = test
    return splits


def inputs_by_split(model: nn.Module, data: Any, test: Any, trains: Any) -> dict[str, Any]:
    """Rows for a model that a function judges: labels are read where something trains by them."""
    if test is not None:
        raise ConfigError("test: evaluate uses its own rows; expected only data for calibration.")
    if isinstance(data, Mapping) and "train" in data:
        data = data["train"]
    return {"train": data if trains else read_inputs(model, data)}
