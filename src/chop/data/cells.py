"""Cleaning of table cells: pandas indices, decimal commas, missing and infinite numbers."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from chop.base.notices import assume
from chop.data.bars import without_bars
from chop.data.splits import check_splits
from chop.errors import ConfigError, enumerate_names

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

MAX_LISTED = 8
"""Maximum number of columns that a message lists."""
INDICES = re.compile(r"Unnamed: 0(\.\d+)?|__index_level_\d+__")
"""Column names that pandas' `to_csv` and `to_parquet` give to an unnamed index."""
DECIMAL = re.compile(r"\s*[+-]?\d*,\d+(e[+-]?\d+)?\s*", re.IGNORECASE)
WHOLE = re.compile(r"\s*[+-]?\d+\s*")
THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?\s*")
TEXTS = ("string", "large_string")
"""Arrow types of text columns."""
log = logging.getLogger(__name__)


@without_bars()
def with_plain_cells(splits: DatasetDict) -> DatasetDict:
    """Removes pandas indices and converts texts with decimal commas to numbers.

    Args:
        splits: result of `load_dataset`.
    Raises:
        ConfigError: if commas of a column are, or may be, thousands separators.
    """
    check_splits(splits)
    from datasets import DatasetDict

    train = splits["train"]
    indices = [n for n in train.column_names if INDICES.fullmatch(n) and _is_integer(train, n)]
    if indices and len(indices) < len(train.column_names):
        note_indices(indices)
        splits = DatasetDict({k: s.remove_columns(indices) for k, s in splits.items()})
    commas = [name for name in splits["train"].column_names if _has_commas(splits, name)]
    if not commas:
        return splits
    listed = enumerate_names(list(map(repr, commas)), MAX_LISTED)
    assume(f"columns {listed} have decimal commas and are read as numbers", log)
    return DatasetDict({key: _converted(split, commas) for key, split in splits.items()})


BEYOND = "infinite numbers, in float32 with a maximum of 3.4e38"
"""Description of cells that are infinite as float32."""


def _is_integer(split: Dataset, name: str) -> bool:
    return str(getattr(split.features[name], "dtype", "")).startswith(("int", "uint"))


def _has_commas(splits: DatasetDict, name: str) -> bool:
    """Returns true if a column holds only numbers, some with decimal commas."""
    train = splits["train"]
    if getattr(train.features[name], "dtype", None) not in TEXTS:
        return False
    first = train.select_columns([name])[0][name] if len(train) else None
    if not len(train) or not (_is_number(first) or _is_grouped(first)):
        return False
    texts = [x for s in splits.values() for x in s.with_format(None)[name] if x]
    if not all(map(_is_number, texts)):
        grouped = [text for text in texts if THOUSANDS.fullmatch(text)]
        if grouped and all(map(_is_grouped, texts)):
            raise ConfigError(
                f"column '{name}': numbers have thousands separators, such as {grouped[0]!r}; save "
                f"them without, as {grouped[0].replace(',', '')}."
            )
        return False
    marked = [text for text in texts if "," in text]
    if marked and all(map(THOUSANDS.fullmatch, marked)):
        raise ConfigError(
            f"column '{name}': {marked[0]!r} has a decimal comma or a thousands separator; save "
            f"it as {marked[0].replace(',', '.')} or {marked[0].replace(',', '')}."
        )
    return bool(marked)


def _is_number(text: str | None) -> bool:
    return not text or bool(DECIMAL.fullmatch(text) or WHOLE.fullmatch(text))


def _is_grouped(text: str | None) -> bool:
    """Returns true for a number with a decimal point, with or without thousands separators."""
    return _is_plain_number(text) or bool(THOUSANDS.fullmatch(text or ""))


def _converted(split: Dataset, names: Iterable[str]) -> Dataset:
    from datasets import Value

    for name in names:
        place = split.column_names.index(name)
        texts = split.with_format(None)[name]
        numbers = [float(text.replace(",", ".")) if text else None for text in texts]
        order = split.column_names
        split = split.remove_columns(name).add_column(name, numbers, feature=Value("float64"))
        assert split.column_names[-1] == order[place]
        split = split.select_columns(order)
    return split


def note_texts(texts: Sequence[str], numbers: Collection[str]) -> None:
    """Records the assumption that columns of texts beside inputs of numbers are not used.

    Args:
        texts: columns without numbers, or descriptions of them.
        numbers: input columns with numbers. Among token columns, no text is missed.
    """
    if texts and numbers and "input_ids" not in numbers:
        assume(f"columns without numbers are not used as inputs: {', '.join(texts)}", log)


def note_indices(names: Sequence[str]) -> None:
    """Records the assumption that columns are indices that pandas wrote, and no inputs."""
    if names:
        listed = ", ".join(map(repr, names))
        assume(f"column {listed} is an index written by pandas and not used as input", log)


def describe_texts(splits: Mapping[str, Dataset], name: str) -> str:
    """Returns the name of a text column with one of its texts, and how many are numbers.

    >>> from datasets import Dataset
    >>> table = {"train": Dataset.from_dict({"age": ["31", "?", "40"], "rise": ["4%", "5%", "6%"]})}
    >>> describe_texts(table, "age"), describe_texts(table, "rise")
    ("age (2 of 3 rows have numbers, one has '?')", "rise (such as '4%')")
    """
    cells = [cell for split in splits.values() for cell in split.with_format(None)[name][:]]
    others = [cell for cell in cells if not _is_plain_number(cell)]
    if not others:
        return name
    if 2 * len(others) > len(cells):
        return f"{name} (such as {others[0]!r:.40})"
    counted = f"{len(cells) - len(others)} of {len(cells)} rows have numbers"
    return f"{name} ({counted}, one has {others[0]!r:.40})"


def _is_plain_number(text: str | None) -> bool:
    try:
        float(text or 0)
    except ValueError:
        return False
    return True


def check_cells(names: Sequence[str], values: np.ndarray) -> None:
    """Checks that all cells of a table of numbers are finite.

    Args:
        names: names of the columns.
        values: (rows, columns); a blank cell is NaN.
    Raises:
        ConfigError: if cells are not finite; the message has their number by column and one of the
            rows.
    """
    problems = (
        (np.isnan(values), "blank cells or NaN", "Fill them"),
        (np.isinf(values), BEYOND, "Replace them"),
    )
    for bad, what, advice in problems:
        if not bad.any():
            continue
        counts = dict(zip(names, bad.sum(0).tolist(), strict=True))
        counted = [f"'{name}' ({count})" for name, count in counts.items() if count]
        rows = np.flatnonzero(bad.any(1))
        first = [f"{name}={value:g}" for name, value in zip(names, values[rows[0]], strict=True)]
        raise ConfigError(
            f"data: {len(rows)} of {len(values)} rows have {what}, in the columns "
            f"{enumerate_names(counted, MAX_LISTED)}; the first is "
            f"{enumerate_names(first, MAX_LISTED)}. {advice} or remove these rows."
        )


def is_quoted_number(cell: object) -> bool:
    """Returns true for a text that is a JSON number, or a list of them.

    >>> is_quoted_number("-0.5"), is_quoted_number("[1, 2.5]"), is_quoted_number("good film")
    (True, True, False)
    """
    if not isinstance(cell, str):
        return False
    try:
        value = json.loads(cell)
    except ValueError:
        return False
    return all(isinstance(x, float | int) for x in (value if isinstance(value, list) else [value]))
