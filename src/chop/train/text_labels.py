"""Conversion of text labels in frames, arrays, lists and mappings to class numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chop.base.notices import assume
from chop.data import label_column
from chop.data.bars import without_bars
from chop.data.labels import (
    MAX_LISTED,
    class_names,
    numbers_of_names,
    sorted_names,
    with_numbered_labels,
)
from chop.errors import ConfigError, enumerate_names
from chop.train.given.frames import is_frame, is_series


@without_bars()
def with_numbered_texts(
    splits: Mapping[str, Any], known: Mapping[str, int] | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Converts text labels to classes, with the same numbers in all splits.

    Args:
        splits: rows by split: frames, pairs `(X, y)`, mappings of columns, or data sets of
            `datasets`. Other kinds and numeric labels stay unchanged.
        known: class numbers by name from the model; None if it has none.
    Returns: the splits, and the names of the classes; none if the labels are numbers.
    Raises:
        ConfigError: if a row has no label.
    """
    if "train" in splits and all(map(_is_table, splits.values())):
        from datasets import DatasetDict

        tables = with_numbered_labels(DatasetDict(splits), known)
        return {**tables}, tuple(class_names(tables) or ())
    texts = {key: labels for key, data in splits.items() if (labels := _texts(data)) is not None}
    if not texts:
        return dict(splits), ()
    numbered = [
        key for key, data in splits.items() if key not in texts and _labels(data) is not None
    ]
    if numbered:
        raise ConfigError(
            f"labels of the split '{next(iter(texts))}' are text, those of '{numbered[0]}' are "
            "numbers; use one form."
        )
    names = sorted_names({text for labels in texts.values() for text in labels})
    number = numbers_of_names(names, known)
    _check_are_trained(texts)
    converted = {
        key: _replaced(data, np.array([number[text] for text in texts[key]]))
        if key in texts
        else data
        for key, data in splits.items()
    }
    return converted, tuple(number)


def _is_table(data: Any) -> bool:
    """Returns true for a data set of `datasets` in memory or a file, not for a stream."""
    return type(data).__module__.startswith("datasets.") and hasattr(data, "unique")


def _check_are_trained(texts: Mapping[str, Sequence[str]]) -> None:
    """Checks that each split shares a class with the training rows. Notes classes without training
    rows.
    """
    trained = set(texts.get("train", ()))
    for key, labels in texts.items():
        others = sorted({*labels} - trained)
        listed = enumerate_names(others, MAX_LISTED)
        if trained and others and len(others) == len({*labels}):
            raise ConfigError(
                f"the classes of the split '{key}' ({listed}) do not occur in the training rows "
                f"({enumerate_names(sorted(trained), MAX_LISTED)})."
            )
        if trained and others:
            assume(f"No training row has the class {listed} of the split '{key}'.")


def _labels(data: Any) -> Any:
    """Returns the labels of rows; None if their place is unknown."""
    if is_frame(data) or isinstance(data, Mapping):
        column = label_column(list(data))
        return None if column is None else data[column]
    if isinstance(data, tuple) and len(data) == 2:
        labels = data[1]
        return labels.iloc[:, 0] if is_frame(labels) and labels.shape[1] == 1 else labels
    return None


def _texts(data: Any) -> list[str] | None:
    """Returns labels that are text; None for other labels."""
    labels = _labels(data)
    if not (is_series(labels) or isinstance(labels, list | np.ndarray)):
        return None
    values = labels.tolist() if hasattr(labels, "tolist") else labels
    first = next((value for value in values if value is not None and value == value), None)
    if not isinstance(first, str | bytes):
        return None
    missing = [i + 1 for i, value in enumerate(values) if not isinstance(value, str | bytes)]
    if missing:
        raise ConfigError(
            f"labels: {len(missing)} of {len(values)} rows have no label, the first is row "
            f"{missing[0]}; add their class or remove these rows."
        )
    return [value.decode() if isinstance(value, bytes) else str(value) for value in values]


def _replaced(data: Any, numbers: np.ndarray) -> Any:
    if is_frame(data):
        return data.assign(**{str(label_column(list(data))): numbers})
    if isinstance(data, Mapping):
        return {**data, str(label_column(list(data))): numbers}
    return data[0], numbers
