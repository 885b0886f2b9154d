"""Numeric tables: combination of number columns into one input vector."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from chop.base.notices import assume
from chop.data.bars import without_bars
from chop.data.cells import TEXTS, check_cells, describe_texts, note_texts
from chop.data.label_columns import NUMBERS, label_column
from chop.data.splits import check_splits
from chop.errors import MOST_NAMES, ConfigError, check_known, enumerate_names

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

log = logging.getLogger(__name__)
VECTOR = "x"
"""Name of the column of input vectors."""


@without_bars()
def with_vectors(
    splits: DatasetDict,
    parameters: Collection[str],
    outputs: Collection[str] = (),
    selected: Sequence[str] = (),
) -> DatasetDict:
    """Combines all numeric columns into one column `x` of vectors, in their order.

    Args:
        splits: result of `load_dataset`.
        parameters: parameters of the model. If one has the name of a column, or there is only one
            input column, columns are not combined. Several names that differ from parameters only
            in case or spaces become these.
        outputs: label columns of several outputs, which stay columns.
        selected: columns that must be inputs, as named by the user.
    Raises:
        ConfigError: if a cell is blank, NaN or infinite, or a selected column has texts.
    """
    check_splits(splits)
    from datasets import DatasetDict

    features = splits["train"].features
    labels = _label_columns(splits, outputs)
    numbers = number_columns(splits, outputs)
    texts = [
        name
        for name, feature in features.items()
        if name not in labels and getattr(feature, "dtype", None) in TEXTS
    ]
    for name in texts:
        if name in selected:
            raise ConfigError(
                f"input_columns: expected columns of numbers, and cells are texts in "
                f"{describe_texts(splits, name)}: save them as numbers, without units, yes and no "
                "as 1 and 0; or leave out this column."
            )
    if any(name not in labels and name in parameters for name in features):
        return splits
    folded = {name.casefold(): name for name in parameters}
    alike = {x: folded[key] for x in features if (key := x.strip().casefold()) in folded}
    alike = {column: name for column, name in alike.items() if column not in labels}
    if len(alike) > 1 and len({*alike.values()}) == len(alike):
        pairs = alike, alike.values()
        columns, names = (enumerate_names([*map(repr, x)], MOST_NAMES) for x in pairs)
        assume(f"The columns {columns} are the inputs {names} of the model.")
        return splits.rename_columns(alike)
    note_texts([describe_texts(splits, name) for name in texts], numbers)
    if len(numbers) < 2:
        return splits
    values = {key: _numbers(split, numbers) for key, split in splits.items()}
    for key, split in values.items():
        lacking = np.asarray(numbers)[np.isnan(split).all(0)]
        if len(split) and 0 < len(lacking) < len(numbers):
            index = numbers.index(lacking[0])
            is_empty = all(np.isnan(each[:, index]).all() for each in values.values())
            advice = (
                "the column is empty; remove it"
                if is_empty
                else "expected the same columns in all files"
            )
            raise ConfigError(
                f"data: no row of the split '{key}' has a number in the column '{lacking[0]}': "
                f"{advice}."
            )
    check_cells(numbers, np.concatenate([*values.values()]))
    return DatasetDict({key: _vectors(split, values[key], labels) for key, split in splits.items()})


def number_columns(splits: DatasetDict, outputs: Collection[str] = ()) -> list[str]:
    """Returns the columns of numbers that are inputs, in the order of the table.

    Args:
        splits: result of `load_dataset`.
        outputs: see `with_vectors`.
    """
    check_splits(splits)
    labels = _label_columns(splits, outputs)
    return [
        name
        for name, feature in splits["train"].features.items()
        if name not in labels and str(getattr(feature, "dtype", "")).startswith(NUMBERS)
    ]


def with_input_columns(
    splits: DatasetDict, names: Sequence[str], source: str, outputs: Collection[str] = ()
) -> DatasetDict:
    """Selects the input columns by name, in this order; labels stay.

    Args:
        splits: result of `load_dataset`.
        names: input columns.
        source: name of the data set, for messages.
        outputs: see `with_vectors`.
    Raises:
        ConfigError: if a column does not exist, is given twice, or holds labels.
    """
    labels, columns = _label_columns(splits, outputs), splits["train"].column_names
    for name in names:
        known = [column for column in columns if column not in labels]
        check_known(name, known, f"input_columns: data set '{source}' has no input column")
        if list(names).count(name) > 1:
            raise ConfigError(f"input_columns: '{name}' is given twice; give it once.")
    others = [name for name in columns if name not in (*names, *labels)]
    if others:
        listed = enumerate_names(list(map(repr, others)), MOST_NAMES)
        assume(f"Not used as inputs, since input_columns has no such name: {listed}.")
    present = [name for name in labels if name in columns]
    return splits.select_columns([*names, *present])


def _label_columns(splits: DatasetDict, outputs: Collection[str]) -> list[str]:
    label = label_column(splits["train"].column_names)
    return [*outputs] or [name for name in (label,) if name is not None]


def _numbers(split: Dataset, names: Sequence[str]) -> np.ndarray:
    """Returns rows of numbers, float32 (rows, columns); a blank cell is NaN."""
    table = split.with_format("numpy")
    with np.errstate(over="ignore"):  # `check_cells` refuses what becomes infinite
        return np.stack([np.asarray(table[name][:], np.float32) for name in names], 1)


def _vectors(split: Dataset, values: np.ndarray, labels: Sequence[str]) -> Dataset:
    from datasets import Dataset

    columns = {VECTOR: values}
    for label in labels:
        columns[label] = split.with_format("numpy")[label][:]
    return Dataset.from_dict(columns)
