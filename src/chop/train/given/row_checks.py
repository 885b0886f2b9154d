"""Checks of the columns of a data set, whatever it was read from.

Shapes: N rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from chop.data.cells import BEYOND
from chop.errors import ConfigError, enumerate_names
from chop.train.given.reading import Column
from chop.train.task import IGNORED

PER_TOKEN = "token-classification"
"""Task with a label per token."""
MAX_LISTED_ROWS = 5
"""Maximum number of rows that a message lists."""
IDS, MASK = "input_ids", "attention_mask"
"""Columns of tokens, and of 1 for a token and 0 for padding."""


def check_columns(
    columns: Mapping[str, Column], labels: Collection[str | None] = (), task: str | None = None
) -> None:
    """Checks that columns have equally many rows, and each has rows of one shape without gaps.

    Rows of whole numbers may differ in length, since tokens are padded. Rows of other numbers may
    do so beside an `attention_mask`, or labels of the same lengths.

    Args:
        columns: columns by name.
        labels: those with labels, which are padded, and whose gaps `read_labels` reports.
        task: name of the task that was given.
    Raises:
        ConfigError: if they do not. The message names a row, counted from 0.
    """
    for name, column in columns.items():
        if isinstance(column, Tensor) and column.dim() == 0:
            raise ConfigError(
                f"column '{name}': expected a number or an array per row, got a single number."
            )
    lengths = {name: len(column) for name, column in columns.items()}
    if len({*lengths.values()}) > 1:
        listed = ", ".join(f"'{name}' has {length}" for name, length in lengths.items())
        raise ConfigError(f"expected equally many rows in every column: {listed}.")
    if task == PER_TOKEN:
        _check_labels_of_tokens(columns, labels)
    else:
        _check_are_not_sets(columns, labels)
    for name, column in columns.items():
        if isinstance(column, list):
            has_labels = any(
                _lengths(column) == _lengths(columns[x]) for x in columns if x in labels
            )
            _check_shapes(name, column, can_pad=has_labels or MASK in columns)
        if name not in labels:
            _check_no_gaps(name, column)
    _check_mask(columns)


def _check_are_not_sets(columns: Mapping[str, Column], labels: Collection[str | None]) -> None:
    """Checks that labels are not lists of several classes per row, beside inputs of one shape."""
    if any(isinstance(column, list) for name, column in columns.items() if name not in labels):
        return
    for name, column in columns.items():
        if isinstance(column, list) and all(
            row.dim() == 1 and not (len(row) and row.is_floating_point()) for row in column
        ):
            tokens = (
                f" For a label per token, pad the labels with {IGNORED} to the length of '{IDS}', "
                f"and pass --task {PER_TOKEN}."
            )
            raise ConfigError(
                f"column '{name}': rows have different numbers of classes. Pass 0 or 1 for each "
                "class, (N, C), as sklearn.preprocessing.MultiLabelBinarizer does, and "
                f"--task multilabel.{tokens * (IDS in columns)}"
            )


def _check_labels_of_tokens(columns: Mapping[str, Column], labels: Collection[str | None]) -> None:
    """Checks that each token has a label; more labels may be padding."""
    for name in columns.keys() & labels if IDS in columns else ():
        for i, (row, own) in enumerate(zip(columns[IDS], columns[name], strict=True)):
            if row.dim() == own.dim() == 1 and len(own) < len(row):
                raise ConfigError(
                    f"column '{name}': row {i} has {len(own)} labels for {len(row)} tokens in "
                    f"'{IDS}'. Pass a label for each token, and {IGNORED} for tokens without one, "
                    "such as further parts of a word and padding."
                )


def _lengths(column: Column) -> list[int]:
    """Returns the number of elements of each row along its first dimension."""
    return [len(row) if row.dim() else 0 for row in column]


def _check_mask(columns: Mapping[str, Column]) -> None:
    """Checks that a mask has a number for each token of its row."""
    if not {IDS, MASK} <= columns.keys():
        return
    for i, (row, mask) in enumerate(zip(columns[IDS], columns[MASK], strict=True)):
        if row.dim() == mask.dim() == 1 and len(row) != len(mask):
            raise ConfigError(
                f"row {i} has {len(row)} number{'s' * (len(row) != 1)} in '{IDS}' and "
                f"{len(mask)} in '{MASK}'; expected equally many."
            )


def _check_shapes(name: str, rows: list[Tensor], can_pad: bool) -> None:
    """Checks that rows of different shapes can be padded to one."""
    usual = Counter(tuple(row.shape) for row in rows).most_common(1)[0][0]
    is_padded = can_pad or not any(row.is_floating_point() for row in rows)
    for i, row in enumerate(rows):
        shape = tuple(row.shape)
        if shape == usual or (is_padded and shape[1:] == usual[1:] and row.numel()):
            continue
        first = next(j for j, other in enumerate(rows) if tuple(other.shape) == usual)
        raise ConfigError(
            f"column '{name}': row {i} has {_describe(row)}, and row {first} has "
            f"{_describe(rows[first])}; {_advice(shape, usual)}."
        )


def _describe(row: Tensor) -> str:
    if row.dim() == 0:
        return f"the single number {row.item():.6g}"
    if row.dim() > 1:
        return f"an array of shape {tuple(row.shape)}"
    numbers = [f"{x:.6g}" for x in row.tolist()]
    listed = f" ({enumerate_names(numbers, MAX_LISTED_ROWS)})" if numbers else ""
    return f"{len(row)} number{'s' * (len(row) != 1)}{listed}"


def _advice(shape: tuple[int, ...], usual: tuple[int, ...]) -> str:
    if len(shape) != len(usual):
        return "expected one shape. A tuple of tuples is a list of rows (x, label): pass (X, y)"
    if len(shape) > 1:
        return "bring all rows to one shape"
    if 0 in shape:
        return "fill the row or remove it"
    return (
        "expected equally many in each, since only token IDs and columns beside an "
        f"{MASK} are padded"
    )


def _check_no_gaps(name: str, column: Column) -> None:
    """Checks that a column has no NaN, which readers use for blank cells.

    A number or vector per row must also be finite. Larger inputs may be masks with infinities.
    """
    if not len(column):
        return
    rows = column if isinstance(column, list) else column.flatten(1) if column.dim() > 1 else column
    if isinstance(rows, Tensor):
        if not rows.is_floating_point():
            return
        gaps = rows.isnan() if rows.dim() == 1 else rows.isnan().any(1)
    else:
        gaps = torch.tensor([bool(row.isnan().any()) for row in rows])
    _check_none(name, gaps, "blank cells or NaN", "fill them")
    if isinstance(column, Tensor) and column.dim() <= 2 and "mask" not in name:
        _check_none(name, column.reshape(len(column), -1).isinf().any(1), BEYOND, "replace them")


def _check_none(name: str, bad: Tensor, what: str, advice: str) -> None:
    numbers = [str(number) for number in bad.nonzero().flatten().tolist()]
    if numbers:
        raise ConfigError(
            f"column '{name}': {len(numbers)} of {len(bad)} rows have {what} (row "
            f"{enumerate_names(numbers, MAX_LISTED_ROWS)}): {advice} or remove these rows."
        )
