"""Conversion of rows to the floating-point dtype of a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from chop.base.notices import assume
from chop.train.given.reading import Column
from chop.train.rows import Rows

log = logging.getLogger(__name__)


def cast_inputs(model: nn.Module, splits: Mapping[str, Rows]) -> dict[str, Rows]:
    """Converts floating-point inputs to the dtype of the model's parameters.

    If the parameters have several dtypes, the rows stay unchanged.

    Args:
        model: model whose parameters are read.
        splits: rows by split; labels are not converted.
    Warns: by the logger, if inputs are converted.
    """
    converted = {name: cast_rows(model, rows) for name, rows in splits.items()}
    if any(rows is not splits[name] for name, rows in converted.items()):
        dtype = next(x.dtype for x in model.parameters() if x.is_floating_point())
        assume(f"inputs are converted to {dtype}, the dtype of the model's parameters", log)
    return converted


def cast_rows(model: nn.Module, rows: Rows) -> Rows:
    """Converts the inputs of rows like `cast_inputs`, without a message."""
    dtypes = {x.dtype for x in model.parameters() if x.is_floating_point()}
    if len(dtypes) != 1:
        return rows
    (dtype,) = dtypes
    columns = {name: _in(column, dtype) for name, column in rows.columns.items()}
    is_same = all(column is rows.columns[name] for name, column in columns.items())
    return rows if is_same else replace(rows, columns=columns)


def _in(column: Column, dtype: torch.dtype) -> Column:
    first = column if isinstance(column, Tensor) else column[0]
    if not first.is_floating_point() or first.dtype == dtype:
        return column
    return column.to(dtype) if isinstance(column, Tensor) else [x.to(dtype) for x in column]
