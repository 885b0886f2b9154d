"""Loader for built-in data sets, local files and hub data sets."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
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
from chop.data.label_columns import (
    LABEL_ADVICE,
    UNLABELED_ADVICE,
    check_is_labeled,
    count_unlabeled,
    describe_missing_label,
    has_no_labels,
    label_column,
    with_label,
)
from chop.data.points import jets, toy
from chop.data.reviews import reviews
from chop.data.splits import SPLITS, check_splits
from chop.data.stories import stories
from chop.data.windows import is_running_text
from chop.errors import (
    ChopError,
    ConfigError,
    UnavailableError,
    did_you_mean,
)
from chop.runs import MANIFEST

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

HELD_OUT_SHARE = 0.2
SPLIT_OFF = "test rows are split off"
"""Assumption that test rows were split off, which jobs look up."""

BUILTIN_DATASETS: dict[str, Callable[[], DatasetDict]] = {
    "digits": digits,
    "reviews": reviews,
    "stories": stories,
    "toy": toy,
}
FETCHED_DATASETS: dict[str, Callable[[], DatasetDict]] = {"jsc": jets}
_BUILT_IN = BUILTIN_DATASETS | FETCHED_DATASETS
TEXT_DATASETS = frozenset({"reviews", "stories"})
UNLABELED_DATASETS = frozenset({"stories"})


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
        given = with_label(name_or_path, label)
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
    return _shorten(_train_and_test(with_label(splits, label), name, labeled, label), limit)


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


def _train_and_test(
    splits: DatasetDict, name: str, needs_labels: bool = True, label: str | None = None
) -> DatasetDict:
    from datasets import DatasetDict

    # What a folder of save_to_disk holds is read by now, and not before.
    with library_errors(name, error=ConfigError):
        unlabeled = {k: count_unlabeled(s) if needs_labels else 0 for k, s in splits.items()}
    labeled = {k: s for k, s in splits.items() if not needs_labels or unlabeled[k] < len(s)}
    if "train" not in labeled:
        if "train" in splits and has_no_labels(splits):
            raise ConfigError(describe_missing_label(splits, name))
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
    check_is_labeled(labeled, unlabeled, name, label)
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
