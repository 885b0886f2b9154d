"""Rows given to `chop.compress`: their splits, and the column and scale of their labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
from torch import nn

from chop.base.notices import assume
from chop.config import convert
from chop.data.label_columns import check_label_columns, joined_labels, other_label_columns
from chop.errors import ConfigError, check_known, describe, enumerate_names
from chop.train.given.frames import is_frame, to_array
from chop.train.given.reading import read_columns
from chop.train.unlabeled import read_inputs
from chop.workloads.pictures import SETTINGS
from chop.workloads.settings import WorkloadConfig
from chop.workloads.standard_labels import with_standard_labels
from chop.workloads.workload import Workload

LABELS = "labels"
SPLITS = {"train", "test", "validation"}
FILE_SETTINGS = (
    *("model", "dataset", "weights", "tokenizer", "text_column", "max_length", "stride", "limit"),
    *("train_epochs", "input_columns", "class_names", *SETTINGS),
)
"""Settings that select a model and its rows, and how they are read."""


def check_are_used(settings: Iterable[str]) -> None:
    """Rejects settings for reading files, `label` and `weights_only`.

    Raises:
        ConfigError: if there is one, since model and rows are used as given.
    """
    for name in settings:
        if name == "label":
            raise ConfigError("chop.compress: unknown key 'label': did you mean 'label_column'?")
        if name in {"weights_only", "weight_only"}:  # as in `chop.quantize`
            raise ConfigError(
                f"chop.compress: unknown key '{name}': pass operands=[\"weight\"] to round weights "
                "only."
            )
        if name in FILE_SETTINGS:
            raise ConfigError(
                f"chop.compress: leave out {name}, which applies to models and data from files; "
                "yours are used as given."
            )


def joined_columns(names: Any) -> Any:
    """Returns a list of names as one text with commas, and other values as given.

    >>> joined_columns(["rain", "snow"]), joined_columns("rain")
    ('rain,snow', 'rain')
    """
    is_list = isinstance(names, list | tuple) and len(names) > 0
    is_plain = is_list and all(isinstance(name, str) and "," not in name for name in names)
    return ",".join(names) if is_plain else names


def with_label_column(data: Any, columns: str | Sequence[str] | None) -> Any:
    """Renames the label column to `labels`; joins several columns of numbers to one.

    Args:
        data: frame, mapping of columns, data set, or loader of mappings; or a mapping of these by
            split.
        columns: name of the column, or several, as a list or separated by commas; None changes
            nothing.
    Raises:
        ConfigError: if there is no such column, or columns have no names.
    """
    label: str | None = convert(joined_columns(columns), str | None, "label_column")
    if label is None or data is None:
        return data
    if isinstance(data, str | PathLike):
        raise ConfigError(
            f"data: expected rows, got the name '{data}': read it first, for example with "
            "pandas.read_csv."
        )
    if isinstance(data, Mapping) and "train" in data and label != "train":
        return {name: with_label_column(split, label) for name, split in data.items()}
    names = list(data) if isinstance(data, Mapping) else getattr(data, "column_names", None)
    names = list(data.columns) if is_frame(data) else names
    if not isinstance(names, list) and not (isinstance(data, tuple) or hasattr(data, "shape")):
        data = read_columns(data)  # a loader, a data set of torch, or a list of mappings
        names = list(data)
    if not isinstance(names, list):
        raise ConfigError(
            "label_column: expected a frame, a mapping of columns or a data set, got "
            f"{type(data).__name__}; pass (inputs, labels)."
        )
    several = [name.strip() for name in label.split(",")]
    if len(several) > 1 and label not in names:
        return _with_joined_labels(data, several, names)
    check_known(label, list(map(str, names)), "label column")
    others = other_label_columns(names, [label])
    if is_frame(data):
        return data.drop(columns=others).rename(columns={label: LABELS})
    if isinstance(data, Mapping):
        table = {name: column for name, column in data.items() if name not in others}
        return {LABELS if name == label else name: column for name, column in table.items()}
    data = data.remove_columns(others)
    return data if label == LABELS else data.rename_column(label, LABELS)


def _with_joined_labels(data: Any, labels: Sequence[str], names: Sequence[str]) -> Any:
    """Joins several columns of numbers to one label column, (rows, columns)."""
    if not is_frame(data) and not isinstance(data, Mapping):
        return joined_labels(data, labels)
    check_label_columns(labels, list(map(str, names)))
    dropped = {*labels, *other_label_columns(names, labels)}
    if is_frame(data):
        joined = np.stack([to_array(data[name], name) for name in labels], 1)
        return data.drop(columns=[name for name in names if name in dropped]), joined
    columns = {name: column for name, column in data.items() if name not in dropped}
    return {**columns, LABELS: np.stack([np.asarray(data[name]) for name in labels], 1)}


def with_scale(workload: Workload, config: WorkloadConfig) -> Workload:
    """Returns the workload with labels standardized by `label_mean` and `label_std`."""
    rows = {"train": workload.train, "test": workload.test}
    if workload.validation is not None:
        rows["validation"] = workload.validation
    scaled = with_standard_labels(rows, workload.task, config.label_mean, config.label_std)
    train, test, validation = scaled["train"], scaled["test"], scaled.get("validation")
    return replace(workload, train=train, test=test, validation=validation)


def rows_by_split(data: Any, test: Any) -> dict[str, Any]:
    """Returns rows by split for `Workload.of`."""
    if data is None:
        raise ConfigError("data: expected labeled rows, such as (X, y), got None.")
    if isinstance(test, bool | int | float):
        raise ConfigError(
            f"test: expected labeled rows, such as (X_test, y_test), got {describe(test)}; leave "
            "it out to split a fifth off."
        )
    if test is None and (splits := _paired_arrays(data)):
        return splits
    if isinstance(data, Mapping) and data and not data.keys() - SPLITS and "train" not in data:
        names = enumerate_names([*data], len(SPLITS))
        raise ConfigError(f"data: expected a split train as well, got {names}.")
    if isinstance(data, Mapping) and "train" in data:
        for name in data:
            check_known(name, sorted(SPLITS), "data: unknown split")
        splits = dict(data)
        if splits["train"] is None:
            raise ConfigError("data['train']: expected labeled rows, such as (X, y), got None.")
    else:
        splits = {"train": data}
    if test is not None:
        splits["test"] = test
    return splits


def _paired_arrays(data: Any) -> dict[str, Any]:
    """Returns the splits of (X_train, X_test, y_train, y_test) or two pairs; of others, none.

    The first is the result of `sklearn.model_selection.train_test_split`, the second that of
    `load_data` in Keras. Parts of one length are other data, such as several inputs.
    """
    if not isinstance(data, tuple | list) or len(data) not in (2, 4):
        return {}
    parts: Any = data
    if len(data) == 2 and all(isinstance(part, tuple) and len(part) == 2 for part in data):
        parts = data[0][0], data[1][0], data[0][1], data[1][1]
    is_array = len(parts) == 4 and all(hasattr(part, "shape") or is_frame(part) for part in parts)
    sizes = [next(iter(part.shape), 0) for part in parts] if is_array else []
    if not is_array or sizes[0] == sizes[1] or sizes[:2] != sizes[2:]:
        return {}
    assume("The four arrays are training inputs, test inputs, training labels and test labels.")
    return {"train": (parts[0], parts[2]), "test": (parts[1], parts[3])}


def inputs_by_split(model: nn.Module, data: Any, test: Any, trains: Any) -> dict[str, Any]:
    """Returns rows for a user-scored model; reads labels only if something trains."""
    if test is not None:
        raise ConfigError("test: evaluate uses its own rows; expected only data for calibration.")
    if isinstance(data, Mapping) and "train" in data:
        data = data["train"]
    return {"train": data if trains else read_inputs(model, data)}
