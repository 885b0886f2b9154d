"""Label columns of a data set: their names, missing labels, and several columns as one."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.base.notices import assume
from chop.config import with_checked_arguments
from chop.data.cells import TEXTS
from chop.data.masks import with_masks_as_labels
from chop.data.pictures import picture_column
from chop.data.splits import SPLITS, check_splits
from chop.errors import MOST_NAMES, ConfigError, check_known, enumerate_names

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

LABEL_ADVICE = "choose the label column with --label-column (label= of chop.data.load_dataset)"
MOST_LABELS = 20
"""Number of different texts up to which an error suggests a column as the label."""
UNLABELED_ADVICE = "If the rows have no labels, score the model with --evaluate file.py:fn."
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?(\.\d+)?")
"""Column name that is a number; the last part is what readers add to repeated names."""
SPLIT_FOLDER = re.compile(r"train|test|val|dev", re.IGNORECASE)
"""Beginning of the name of a split's folder."""
NUMBERS = ("int", "uint", "float", "bool")
"""Prefixes of the types of numeric columns."""


@with_checked_arguments
def label_column(columns: Collection[Any]) -> str | None:
    """Returns the label column, `labels` or `label`, or None.

    >>> label_column(["text", "label"])
    'label'
    """
    return next((name for name in ("labels", "label") if name in columns), None)


@with_checked_arguments
def required_label_column(columns: Collection[Any]) -> str:
    """Returns the label column.

    Raises:
        ConfigError: if there is no label column.
    """
    column = label_column(columns)
    if column is None:
        raise ConfigError(f"no column 'labels' or 'label' among {columns}; {LABEL_ADVICE}.")
    return column


def num_labels(splits: DatasetDict) -> int:
    """Returns the number of classes from the label feature, otherwise from the largest label.

    Raises:
        ConfigError: if there is no label column, or it does not hold class numbers.
    """
    check_splits(splits)
    train = splits["train"]
    column = required_label_column(train.column_names)
    names = getattr(train.features[column], "names", None)
    if names:
        return len(names)
    largest = max(train.with_format(None)[column])
    if isinstance(largest, str):
        raise ConfigError(
            f"column '{column}': expected class numbers, got text such as '{largest}'; "
            f"number them with splits.class_encode_column('{column}')."
        )
    return int(largest) + 1


def with_label(splits: DatasetDict, label: str | None) -> DatasetDict:
    """Renames the label column to `labels`, replacing a column of that name."""
    from datasets import DatasetDict

    columns = splits[next(iter(splits))].column_names
    if label is None or (label == "labels" and label not in columns):
        return with_masks_as_labels(splits)
    several = [name.strip() for name in label.split(",")]
    if label not in columns and len(several) > 1:
        return DatasetDict({key: joined_labels(split, several) for key, split in splits.items()})
    if label not in columns and (missing := _missing_header(columns)):
        raise ConfigError(f"label column '{label}': {missing}")
    check_known(label, columns, "label column")
    others = other_label_columns(columns, [label])
    splits = DatasetDict({key: split.remove_columns(others) for key, split in splits.items()})
    return splits if label == "labels" else splits.rename_column(label, "labels")


def other_label_columns(columns: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """Returns the label columns that are not inputs beside the chosen ones, and reports them."""
    others = [name for name in ("labels", "label") if name in columns and name not in chosen]
    for name in others:
        assume(
            f"Column '{name}' is not an input, since labels are read from "
            f"{enumerate_names(list(map(repr, chosen)), MOST_NAMES)} and its name means labels as "
            "well; rename it to use it as an input."
        )
    return others


def joined_labels(split: Dataset, names: Sequence[str]) -> Dataset:
    """Joins several numeric columns into one column `labels` of lists.

    Args:
        split: rows of `datasets`.
        names: columns to join, in this order; other columns of labels are dropped.
    Raises:
        ConfigError: if a column is unknown, given twice, not numeric, or has gaps.
    """
    check_label_columns(names, split.column_names)
    for name in names:
        if not str(getattr(split.features[name], "dtype", "")).startswith(NUMBERS):
            raise ConfigError(
                f"label column '{name}': expected numbers, since several label columns become one."
            )
        if blank := count_unlabeled(split, name):
            raise ConfigError(
                f"label column '{name}': {blank} of {len(split)} rows have no number; fill them in "
                "or remove these rows."
            )
    table = split.with_format(None)
    columns = (map(_plain_number, table[name]) for name in names)
    labels = list(map(list, zip(*columns, strict=True)))
    others = other_label_columns(split.column_names, names)
    return split.remove_columns([*names, *others]).add_column("labels", labels)


def check_label_columns(names: Sequence[str], columns: Sequence[str]) -> None:
    """Checks the names of several label columns.

    Raises:
        ConfigError: a column is unknown or given twice.
    """
    for name in names:
        check_known(name, columns, "label column")
        if names.count(name) > 1:
            raise ConfigError(f"label column '{name}' is given twice; give it once.")


def _plain_number(value: float) -> float:
    """Converts booleans to 0 and 1, since a list cannot mix them with numbers."""
    return int(value) if isinstance(value, bool) else value


def count_unlabeled(split: Dataset, column: str | None = None) -> int:
    """Counts missing, blank and NaN labels; all if each label is -1, as in hidden test rows of the
    hub.
    """
    import pyarrow.compute as pc

    column = column or label_column(split.column_names)
    if column is None:
        return len(split)
    labels = split.with_format("arrow")[column][:]
    blank = labels.null_count
    kind = str(labels.type)
    if kind in ("float", "double", "halffloat"):
        blank += pc.sum(pc.is_nan(labels)).as_py() or 0
    elif kind in ("string", "large_string"):
        blank += pc.sum(pc.equal(pc.utf8_trim_whitespace(labels), "")).as_py() or 0
    elif kind.startswith("int") and pc.unique(labels).to_pylist() == [-1]:
        blank += len(labels)
    return int(blank)


def check_is_labeled(
    splits: Mapping[str, Dataset], unlabeled: Mapping[str, int], name: str, label: str | None
) -> None:
    """Raises ConfigError if only some rows of a split have a label."""
    for key in SPLITS:
        if key in splits and unlabeled[key]:
            column = label or label_column(splits[key].column_names)
            raise ConfigError(
                f"data set '{name}': {unlabeled[key]} of {len(splits[key])} rows of the split "
                f"'{key}' have no label in the column '{column}'; fill them in or remove these "
                "rows."
            )


def has_no_labels(splits: DatasetDict) -> bool:
    """Returns True without a label column, or for images without folders of classes."""
    train = splits["train"]
    column = label_column(train.column_names)
    if column is None or picture_column(splits) is None:
        return column is None
    return all(label is None for label in train[column][:])


def describe_missing_label(splits: DatasetDict, name: str) -> str:
    """Returns the error message for rows without a label column."""
    if {*splits["train"].column_names} <= {picture_column(splits), "label"}:
        if flat := _folders_without_classes(Path(name)):
            return (
                f"data set '{name}' has folders of classes, but not in {flat}: move each image "
                f"there into the folder of its class, or move {flat} out of the data set."
            )
        return (
            f"data set '{name}' has less than two classes of images; expected a folder per "
            f"class, such as {name}/cat/1.png and {name}/dog/2.png, or {name}/train/cat/1.png, "
            f"without images beside them or in deeper folders.{_advise_table(Path(name))} "
            f"{UNLABELED_ADVICE}"
        )
    if splits["train"].column_names == ["text"]:
        has_folders = any(Path(name).glob("*/*.txt")) or any(Path(name).glob("*/*/*.txt"))
        only = "'text', as a .txt file or a JSON list has"
        only = "texts of files, whose folders are not read as labels" if has_folders else only
        return (
            f"data set '{name}' has no column 'labels' or 'label', only {only}: expected a table "
            "with named columns, such as train.csv with text,label. Only language models read "
            "running text (--task causal-lm)."
        )
    if missing := _missing_header(splits["train"].column_names):
        return f"data set '{name}': {missing}"
    columns = enumerate_names(list(map(repr, splits["train"].column_names)), MOST_NAMES)
    return (
        f"data set '{name}' has no column 'labels' or 'label': its columns are {columns}; "
        f"{LABEL_ADVICE}{_likely_label(splits['train'])}. {UNLABELED_ADVICE}"
    )


def _folders_without_classes(folder: Path) -> str:
    """Returns the folders of splits with images and no folders of classes, if others have them."""
    is_flat = {
        split: not any(each.is_dir() for each in split.iterdir())
        for split in sorted(folder.glob("*"))
        if SPLIT_FOLDER.match(split.name) and split.is_dir() and any(split.iterdir())
    }
    flat = [f"'{split}'" for split, is_so in is_flat.items() if is_so]
    return enumerate_names(flat, MOST_NAMES) if 0 < len(flat) < len(is_flat) else ""


def _advise_table(folder: Path) -> str:
    """Returns advice on a table beside images, or no text if there is none."""
    table = next(iter(sorted(folder.rglob("*.csv"))), None)
    if table is None:
        return ""
    return (
        f" Labels in '{table}' are not read: move each image into the folder of its class, named "
        "by its label."
    )


def _likely_label(train: Dataset) -> str:
    """Names the only column of repeated texts, which is probably the label, else returns ""."""
    texts = [name for name, kind in train.features.items() if getattr(kind, "dtype", None) in TEXTS]
    counts = {name: len({*train[name][:]}) for name in texts}
    likely = [name for name, count in counts.items() if 1 < count <= MOST_LABELS]
    return (
        f", such as '{likely[0]}', which has {counts[likely[0]]} texts" if len(likely) == 1 else ""
    )


def _missing_header(columns: Sequence[str]) -> str:
    """Explains that a table lacks its header if most column names are numbers, else "".

    Names that only count columns, as pandas writes them, are a header.
    """
    numbers = [name for name in columns if NUMBER.fullmatch(name.strip())]
    counted = {str(index) for index in range(len(columns))}
    if 2 * len(numbers) <= len(columns) or {*numbers} <= counted:
        return ""
    listed = enumerate_names(list(map(repr, columns)), MOST_NAMES)
    return (
        f"the first line has numbers where column names are expected ({listed}). The header "
        "seems to be missing: add a first line with a name per column, such as x1,x2,label."
    )
