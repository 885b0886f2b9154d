"""Conversion of pandas frames and series to columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from chop.data import label_column
from chop.data.cells import INDICES, check_cells, note_indices, note_texts
from chop.errors import MOST_NAMES, ConfigError, describe, enumerate_names

MODULE = "pandas"


def is_frame(value: Any) -> bool:
    """Returns true if a value is a pandas DataFrame."""
    return _is_of_pandas(value) and hasattr(value, "columns")


def is_series(value: Any) -> bool:
    """Returns true if a value is a pandas Series."""
    return _is_of_pandas(value) and hasattr(value, "to_frame") and hasattr(value, "dtype")


def _is_of_pandas(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == MODULE


def split_frame(frame: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Splits a frame into inputs and labels. Returns None if it has no label column.

    Args:
        frame: may have a column `labels` or `label`.
    Raises:
        ConfigError: if a column holds no numbers, or a cell is blank, NaN or infinite.
    """
    label = label_column(list(frame.columns))
    if label is None:
        return to_matrix(frame), None
    return to_matrix(frame.drop(columns=label)), to_array(frame[label], label)


def align_columns(train: Any, rows: Any, split: str) -> Any:
    """Returns the rows of a split with the columns of its frame in the order of the training frame.

    Args:
        train: training rows; a frame, or a pair of a frame and labels. Others have no names.
        rows: rows of the split, in the same form.
        split: name of the split, for the error.
    Raises:
        ConfigError: if a column of the training frame is missing.
    """
    if isinstance(train, tuple) and isinstance(rows, tuple) and train and rows:
        return (align_columns(train[0], rows[0], split), *rows[1:])
    if not is_frame(train) or not is_frame(rows):
        return rows
    names, given = list(train.columns), list(rows.columns)
    needed = [n for n in names if n != label_column(names) and not INDICES.fullmatch(str(n))]
    missing = [name for name in needed if name not in given]
    if missing:
        listed = enumerate_names([*map(repr, given)], MOST_NAMES)
        raise ConfigError(
            f"{split}: the frame has no column {missing[0]!r} as the training rows have, but "
            f"{listed}; rename the columns, or pass arrays."
        )
    others = [name for name in given if name not in names]
    known = [name for name in names if name in given]
    is_clear = len({*given}) == len(given)
    return rows[[*known, *others]] if is_clear and given != known else rows


def check_same_order(arrays: Sequence[Any]) -> None:
    """Raises ConfigError if frames and series have the same index labels in another order."""
    first, *others = [array.index for array in arrays if is_frame(array) or is_series(array)] or [0]
    for index in others:
        is_equal_set = len(index) == len(first) and {*index} == {*first}
        if is_equal_set and not index.equals(first):
            raise ConfigError(
                "expected inputs and labels in one order, got frames whose indices have the same "
                "labels in another order; pass (X, y.loc[X.index]), or (X, y.to_numpy()) if rows "
                "are paired by position."
            )


def to_matrix(frame: Any) -> np.ndarray:
    """Converts a frame to float32 (rows, columns), in the order of its columns.

    Columns of texts and pandas indices beside numbers are left out, which is an assumption.

    Raises:
        ConfigError: if another column holds no numbers, or a cell is blank, NaN or infinite.
    """
    names = list(map(str, frame.columns))
    if not names:
        raise ConfigError(
            "expected a frame with columns of numbers in addition to the labels, got none."
        )
    texts, indices = _unused_columns(frame)
    frame = frame.loc[:, [name not in (*texts, *indices) for name in names]]
    names = list(map(str, frame.columns))
    note_texts(texts, names)
    note_indices(indices)
    columns = [to_array(frame.iloc[:, i], name) for i, name in enumerate(names)]
    values = np.stack([column.astype(np.float32) for column in columns], 1)
    check_cells(names, values)
    return values


def _unused_columns(frame: Any) -> tuple[list[str], list[str]]:
    """Returns the columns of texts and those of indices of a frame that has other columns too."""
    kinds = {
        str(n): getattr(d, "kind", "O") for n, d in zip(frame.columns, frame.dtypes, strict=True)
    }
    indices = [name for name in kinds if INDICES.fullmatch(name) and kinds[name] in "iu"]
    texts = [str(name) for i, name in enumerate(frame.columns) if is_text(frame.iloc[:, i])]
    texts = [] if {*texts} == kinds.keys() else texts
    return texts, [] if {*texts, *indices} == kinds.keys() else indices


def vector_columns(data: Any, outputs: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the names of the columns that `to_matrix` combines; none if data are no frame.

    Args:
        data: a frame with labels, or a pair of a frame and labels.
        outputs: names of outputs that may be columns of a frame.
    """
    frame = data[0] if isinstance(data, tuple) and len(data) == 2 else data
    if not is_frame(frame):
        return ()
    labels = () if frame is not data else outputs or (label_column(list(frame.columns)),)
    frame = frame.drop(columns=[name for name in labels if name in frame.columns])
    unused = {name for names in _unused_columns(frame) for name in names}
    return tuple(name for name in map(str, frame.columns) if name not in unused)


def only_texts(frame: Any) -> str:
    """Returns the names of the columns of a frame that has only texts, or an empty text."""
    is_only = all(is_text(frame.iloc[:, i]) for i in range(frame.shape[1]))
    return enumerate_names([*map(repr, frame.columns)], MOST_NAMES) if is_only else ""


def is_text(series: Any) -> bool:
    """Returns true if the first value of a series that is not missing is a text."""
    is_plain = getattr(series.dtype, "kind", "O") not in "OU"
    return not is_plain and isinstance(next(iter(series.dropna()), None), str)


def to_array(series: Any, name: str | None = None) -> np.ndarray:
    """Converts a series to numbers. Missing values become NaN.

    Args:
        series: pandas series.
        name: column name for the error; default, the series' own.
    Raises:
        ConfigError: if it holds values that are not numbers.
    """
    kind = getattr(series.dtype, "kind", "O")
    if kind not in "biuf":
        values = series.dropna()
        first = next((value for value in values if not isinstance(value, Real | Decimal)), None)
        if first is None and kind == "O":  # categories and objects that are numbers
            import pandas

            return np.asarray(pandas.to_numeric(series))
        advice = "number its values (series.astype('category').cat.codes)"
        if isinstance(first, Sequence | np.ndarray) and not isinstance(first, str):
            advice = "pass its rows as an array (numpy.stack(series))"
        if isinstance(first, str) and " " in first.strip():
            advice = "tokenize texts, and pass dict(tokenizer(list(texts))) with the labels,"
        raise ConfigError(
            f"column '{name or series.name}': expected numbers, got {describe(first)}; {advice} or "
            "leave it out."
        )
    if _is_of_pandas(series.dtype):  # of pandas' own, with NA
        whole = kind in "biu" and not series.isna().any()
        if whole:
            return np.asarray(series.to_numpy(dtype=np.int64 if kind != "b" else bool))
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(series.to_numpy())
