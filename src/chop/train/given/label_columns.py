"""Label columns: one per model output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from chop.errors import ConfigError, enumerate_names
from chop.train.model_io import LABELS
from chop.train.outputs import OUTPUT, POSITIONS
from chop.train.task import Labels

MAX_LISTED = 5
"""Maximum number of columns that a message lists."""


def _output_name(column: str) -> str | None:
    """Returns the output whose labels a column holds, see `OUTPUT`; None for other columns."""
    start = OUTPUT.format("")
    return column[len(start) :] if column.startswith(start) else None


def label_columns(labels: Any, rows: int | None = None) -> dict[str, Any]:
    """Converts labels to a column, or to a mapping with a column per output.

    Args:
        labels: labels of rows or of one row; a mapping, tuple or list of arrays has several
            outputs.
        rows: number of rows, which distinguishes a list of outputs from a list of rows; None for
            labels of one row.
    """
    if isinstance(labels, Mapping):
        return {OUTPUT.format(name): column for name, column in labels.items()}
    if not isinstance(labels, tuple | list) or len(labels) < 2:
        return {LABELS: labels}
    are_arrays = all(isinstance(x, Tensor | np.ndarray) and np.ndim(x) for x in labels)
    if rows is None:
        are_outputs = isinstance(labels, tuple) and are_arrays
    else:
        have_rows = [len(each) == rows for each in labels] if are_arrays else [False]
        is_tuple = isinstance(labels, tuple) and any(have_rows)  # checked later
        are_outputs = is_tuple or (len(labels) != rows and all(have_rows))
    if not are_outputs:
        return {LABELS: labels}
    return {OUTPUT.format(POSITIONS.format(i)): each for i, each in enumerate(labels)}


def outputs_among(table: dict[str, Labels], names: tuple[str, ...]) -> dict[str, str]:
    """Returns the label column of each output by name; empty for labels of a single output.

    Args:
        table: columns; a column `labels` with a number per output is split.
        names: requested outputs; () takes them from the labels.
    Raises:
        ConfigError: if a requested output has no labels.
    """
    given = {name: column for column in table if (name := _output_name(column)) is not None}
    if not names:
        return given
    labels = table.get(LABELS)
    if not given and isinstance(labels, Tensor) and labels.shape[1:] == (len(names),):
        del table[LABELS]
        table |= {OUTPUT.format(name): labels[:, i] for i, name in enumerate(names)}
        return {name: OUTPUT.format(name) for name in names}
    if given and not {*names} & {*given} and len(given) == len(names):
        return dict(zip(names, given.values(), strict=True))
    known = {**{column: column for column in table}, **given}
    missing = [name for name in names if name not in known]
    if missing:
        raise ConfigError(
            f"task: no numeric label column '{missing[0]}' for this output among "
            f"{enumerate_names(list(map(repr, known)), MAX_LISTED)}; number classes from 0."
        )
    return {name: known[name] for name in names}
