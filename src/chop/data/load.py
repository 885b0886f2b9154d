"""Loader for built-in data sets, local files and hub data sets."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chop.base.files.library_errors import get_reason, library_errors
from chop.base.hub import hub_is_reachable, offline_errors
from chop.base.notices import assume
from chop.config import with_checked_arguments
from chop.data.bars import without_bars
from chop.data.builtin_names import advice_of_builtin, builtin_name, report_choice
from chop.data.confined import Home, check_hub_files, check_pictures
from chop.data.digits import digits
from chop.data.files import check_is_there, prepared, read_file, read_folder
from chop.data.masks import with_masks_as_labels
from chop.data.pictures import picture_column
from chop.data.points import jets, toy
from chop.data.reviews import reviews
from chop.data.splits import check_splits
from chop.data.stories import stories
from chop.data.windows import is_running_text
from chop.errors import (
    MOST_NAMES,
    ChopError,
    ConfigError,
    UnavailableError,
    check_known,
    did_you_mean,
    enumerate_names,
)
from chop.runs import MANIFEST

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

HELD_OUT_SHARE = 0.2
SPLIT_OFF = "test rows are split off"
"""Assumption that test rows were split off, which jobs look up."""
SPLITS = ("train", "validation", "test")

BUILTIN_DATASETS: dict[str, Callable[[], DatasetDict]] = {
    "digits": digits,
    "reviews": reviews,
    "stories": stories,
    "toy": toy,
}
FETCHED_DATASETS: dict[str, Callable[[], DatasetDict]] = {"jsc": jets}
_BUILT_IN = BUILTIN_DATASETS | FETCHED_DATASETS
TEXT_DATASETS = frozenset({"reviews", "stories"})
LABEL_ADVICE = "choose the label column with --label-column (label= in Python)"
MOST_LABELS = 20
"""Number of different texts up to which an error suggests a column as the label."""
UNLABELED_ADVICE = "If the rows have no labels, score the model with --evaluate file.py:fn."
UNLABELED_DATASETS = frozenset({"stories"})
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?(\.\d+)?")
"""Column name that is a number; the last part is what readers add to repeated names."""
NUMBERS = ("int", "uint", "float", "bool")
"""Prefixes of the types of numeric columns."""


@without_bars()
@with_checked_arguments
def load_dataset(
    name_or_path: str | Path | DatasetDict,
    *,
    limit: int | None = None,
    label: str | None = None,
    labeled: bool = True,
) -> DatasetDict:
    """Loads a data set with the splits `train`, `test` and, if present, `validation`.

    Args:
        name_or_path: a file (parquet, csv, tsv, json, jsonl, or txt, whose rows are lines, also
            compressed); a folder of them, of images in class folders, of images in `images`
            with equally named masks in `masks`, or written by `save_to_disk`; `digits`, `reviews`,
            `stories`, `toy`; `jsc`, fetched from OpenML; a hub name; or a DatasetDict. An existing
            path takes precedence over a built-in name; `builtin:digits` is always built in.
        limit: maximum number of rows per split, drawn with a fixed seed, because files are often
            sorted by label. Ignored for lines of text.
        label: label column, which is renamed to `labels`; default, `labels` or `label`. Several
            numeric columns, `rain,snow,wind`, become one column of lists.
        labeled: False accepts rows without labels, such as text for language modeling.
    Returns: a `datasets.DatasetDict`. Without a labeled `test` split, `validation` is used as
        `test`; without both, a fixed fifth of the rows is held out, for lines the last fifth.
        Further splits, such as IMDb's `unsupervised`, are dropped.
    Raises:
        ConfigError: if a folder has no data files, there is no `train` split, rows lack labels, or
            the limit is below one.
        UnavailableError: if the data set is neither built in nor a local path nor reachable on the
            hub.

    Example:
        >>> {split: len(rows) for split, rows in load_dataset("digits", limit=100).items()}
        {'train': 100, 'test': 100}
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit: expected at least one row, got {limit}.")
    if not isinstance(name_or_path, str | os.PathLike):
        check_splits(name_or_path)
        given = _with_label(name_or_path, label)
        return _shorten(_train_and_test(given, "as given", labeled, label), limit)
    name = str(name_or_path)
    builtin = builtin_dataset(name)
    report_choice(name, _BUILT_IN, "data set", builtin)
    labeled = labeled and builtin not in UNLABELED_DATASETS
    if builtin is not None:
        splits = _BUILT_IN[builtin]()
    elif name and (Path(name).is_dir() or Path(name).is_file()):
        splits = _read_path(Path(name))
    else:
        if "://" in name:
            raise ConfigError(f"data set '{name}': URLs are not read; download the file first.")
        check_is_there(name)
        splits = _from_hub(name)
    return _shorten(_train_and_test(_with_label(splits, label), name, labeled, label), limit)


def _read_path(path: Path) -> DatasetDict:
    if (path / MANIFEST).is_file():
        raise ConfigError(
            f"data set '{path}' is the output folder of a chop command, expected a data set: name "
            "the one that the command read."
        )
    try:
        return read_folder(path) if path.is_dir() else read_file(path)
    except ConfigError as error:
        advice = advice_of_builtin(path, _BUILT_IN)
        raise (ConfigError(f"{error}{advice}") if advice else error) from error.__cause__


def builtin_dataset(name: object) -> str | None:
    """Returns the built-in data set of a name, or None for other names.

    Existing paths take precedence, except output folders of runs.

    Raises:
        ConfigError: if the name has the prefix `builtin:` and is not built in.
    """
    return builtin_name(name, _BUILT_IN, "data set", has_data)


def has_data(path: Path) -> bool:
    """Returns true if a path may hold data: any path except output folders of runs."""
    return path.exists() and not (path / MANIFEST).is_file()


def label_column(columns: list[str]) -> str | None:
    """Returns the label column, `labels` or `label`, or None.

    >>> label_column(["text", "label"])
    'label'
    """
    return next((name for name in ("labels", "label") if name in columns), None)


def required_label_column(columns: list[str]) -> str:
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


def _with_label(splits: DatasetDict, label: str | None) -> DatasetDict:
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
        if blank := _unlabeled_rows(split, name):
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


def _from_hub(name: str) -> DatasetDict:
    import datasets

    with offline_errors():
        with _hub_errors(name):
            builder = datasets.load_dataset_builder(name)
        check_hub_files(builder, name)
        splits = prepared(builder, partial(_hub_errors, name))
        check_pictures(splits, Home(_hub_caches(), f"data set '{name}'"))
        return splits


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Converts errors of `datasets` about the hub to messages."""
    from datasets.exceptions import DatasetGenerationError

    try:
        yield
    except ChopError:
        raise
    except DatasetGenerationError as error:
        raise ConfigError(f"data set '{name}' cannot be read: {get_reason(error)}.") from error
    except (OSError, ValueError) as error:
        reach = "" if hub_is_reachable() else " (the hub cannot be reached)"
        raise UnavailableError(
            f"data set '{name}' is not built in, not a local folder, not in the local cache and "
            f"not on the hub{reach}; pass a local folder, or a built-in: "
            f"{did_you_mean(name, BUILTIN_DATASETS)}"
        ) from error


def _hub_caches() -> list[Path]:
    """Returns the folders for hub files, each set by an environment variable."""
    from datasets import config
    from huggingface_hub import constants

    downloads = (constants.HF_HUB_CACHE, config.DOWNLOADED_DATASETS_PATH)
    return [Path(each) for each in (*downloads, config.HF_CACHE_HOME, config.HF_DATASETS_CACHE)]


def _unlabeled_rows(split: Dataset, column: str | None = None) -> int:
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


def _check_labels(
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


def _has_no_labels(splits: DatasetDict) -> bool:
    """Returns True without a label column, or for images without folders of classes."""
    train = splits["train"]
    column = label_column(train.column_names)
    if column is None or picture_column(splits) is None:
        return column is None
    return all(label is None for label in train[column][:])


def _without_label(splits: DatasetDict, name: str) -> str:
    """Returns the error message for rows without a label column."""
    if {*splits["train"].column_names} <= {picture_column(splits), "label"}:
        return (
            f"data set '{name}' has less than two classes of images; expected a folder per "
            f"class, such as {name}/cat/1.png and {name}/dog/2.png, or {name}/train/cat/1.png, "
            f"without images beside them or in deeper folders. {UNLABELED_ADVICE}"
        )
    if splits["train"].column_names == ["text"]:
        return (
            f"data set '{name}' has no column 'labels' or 'label', only 'text', as a .txt file or "
            "a JSON list has: expected named columns. --task causal-lm evaluates language models."
        )
    if missing := _missing_header(splits["train"].column_names):
        return f"data set '{name}': {missing}"
    columns = enumerate_names(list(map(repr, splits["train"].column_names)), MOST_NAMES)
    return (
        f"data set '{name}' has no column 'labels' or 'label': its columns are {columns}; "
        f"{LABEL_ADVICE}{_likely_label(splits['train'])}. {UNLABELED_ADVICE}"
    )


def _likely_label(train: Dataset) -> str:
    """Names the only column of repeated texts, which is probably the label, else returns ""."""
    texts = [name for name, kind in train.features.items() if "string" in str(kind.dtype)]
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


def _train_and_test(
    splits: DatasetDict, name: str, needs_labels: bool = True, label: str | None = None
) -> DatasetDict:
    from datasets import DatasetDict

    # What a folder of save_to_disk holds is read by now, and not before.
    with library_errors(name, error=ConfigError):
        unlabeled = {k: _unlabeled_rows(s) if needs_labels else 0 for k, s in splits.items()}
    labeled = {k: s for k, s in splits.items() if not needs_labels or unlabeled[k] < len(s)}
    if "train" not in labeled:
        if "train" in splits and _has_no_labels(splits):
            raise ConfigError(_without_label(splits, name))
        if "train" in splits:
            column = label or label_column(splits["train"].column_names)
            raise ConfigError(
                f"data set '{name}' has no labeled split 'train': all labels in its column "
                f"'{column}' are missing or -1. Number classes from 0, or {LABEL_ADVICE}. "
                f"{UNLABELED_ADVICE}"
            )
        raise ConfigError(
            f"data set '{name}' has no labeled split 'train': found {sorted(splits)}. Add one, "
            "such as train.csv."
        )
    for key in SPLITS:
        if key in splits and key not in labeled:
            assume(f"Split '{key}' of data set '{name}' has no labels and is not used.")
    _check_labels(labeled, unlabeled, name, label)
    if "test" in labeled:
        return DatasetDict({key: labeled[key] for key in SPLITS if key in labeled})
    if "validation" in labeled:
        assume(
            f"Data set '{name}' has no test rows; its validation rows are used instead. If the "
            "model was selected on them, these results are too optimistic."
        )
        return DatasetDict(train=labeled["train"], test=labeled["validation"])
    rows = len(labeled["train"])
    if rows < 2:
        raise ConfigError(
            f"data set '{name}' has {rows} rows: expected at least 2, to hold some out for testing."
        )
    order = not is_running_text(splits)
    missing = "labeled test split" if "test" in splits else "test split"
    assume_split_off(HELD_OUT_SHARE, _rows_beside(name), missing)
    column = label_column(labeled["train"].column_names)
    kind = getattr(labeled["train"].features.get(column), "dtype", None)
    if (
        order
        and needs_labels
        and isinstance(kind, str)
        and kind.startswith(("int", "uint", "string", "bool"))
    ):
        return _stratified(labeled["train"], column)
    return labeled["train"].train_test_split(test_size=HELD_OUT_SHARE, seed=0, shuffle=order)


def _stratified(rows: Dataset, column: str | None) -> DatasetDict:
    """Splits test rows off, of each class in proportion."""
    import numpy as np
    from datasets import DatasetDict

    from chop.data.stratify import stratified_split

    order = np.random.default_rng(0).permutation(len(rows))
    count = math.ceil(HELD_OUT_SHARE * len(rows))
    test, train = stratified_split(order, np.asarray(rows[column]), count)
    return DatasetDict(train=rows.select(train), test=rows.select(test))


def assume_split_off(share: float, advice: str = "", kind: str = "test split") -> None:
    """Notes that test rows were split off the data.

    Args:
        share: share of the rows.
        advice: location of test rows; "" explains how to provide them.
        kind: description of the missing split.
    """
    assume(
        f"No {kind} found: {share:.0%} of the rows are used as test data. If your model was "
        "trained on them, these results are too optimistic. "
        + (advice or "Provide a split 'test', such as a folder with train.csv and test.csv."),
        about=SPLIT_OFF,
    )


def _rows_beside(name: str) -> str:
    """Returns a note on test rows in the folder of the training file, or ""."""
    path = Path(name)
    if not path.stem.startswith("train") or not path.exists():
        return ""
    beside = path.with_name(path.name.replace("train", "test", 1))
    if not beside.exists():
        return ""
    return f"To use '{beside}', pass the folder '{path.absolute().parent.name}'."


def _shorten(splits: DatasetDict, limit: int | None) -> DatasetDict:
    from datasets import DatasetDict

    if limit is None or is_running_text(splits):
        return splits
    sampled = {
        key: split.shuffle(seed=0).select(range(min(limit, len(split))))
        for key, split in splits.items()
    }
    return DatasetDict(sampled)
