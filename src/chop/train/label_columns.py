"""Columns of labels: one of most data, several where a model has several outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from chop.errors import ConfigError, enumerate_names
from chop.train.model_io import LABELS
from chop.train.outputs import OUTPUT, POSITIONS
from chop.train.task import Labels

SHOWN = 5
"""Columns that a message names."""


def _output_name(column: str) -> str | None:
    """The name of the output that a column has labels of, see `OUTPUT`; None of others."""
    start = OUTPUT.format("")
    return column[len(start) :] if column.startswith(start) else None


def label_columns(labels: Any, rows: int | None = None) -> dict[str, Any]:
    """Labels as a column, or as one for each output: a mapping, or a tuple or list of arrays.

    Args:
        labels: labels of rows or of one row.
        rows: how many there are, by which a list of outputs is told from a list of rows; None: one.
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
        is_tuple = isinstance(labels, tuple) and any(have_rows)  # others of them are told
        are_outputs = is_tuple or (len(labels) != rows and all(have_rows))
    if not are_outputs:
        return {LABELS: labels}
    return {OUTPUT.format(POSITIONS.format(i)): each for i, each in enumerate(labels)}


def outputs_among(table: dict[str, Labels], names: tuple[str, ...]) -> dict[str, str]:
    """The column with the labels of each output, by its name; those of one label are none.

    Args:
        table: columns; one `labels` with a number for each output is split.
        names: of outputs that were asked for; () takes what the labels say.
    Raises:
        ConfigError: an output that was asked for has no labels.
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
            f"task: no column of numbers '{missing[0]}' for the labels of this output among "
            f"{enumerate_names(list(map(repr, known)), SHOWN)}; classes are numbered from 0."
        )
    return {name: known[name] for name in names}
