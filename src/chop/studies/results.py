"""Results of a study: tables, comparisons, and flat rows of numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from chop.bench import Comparison

SERIES = ("readings", "variants", "environment")
"""Fields with all blocks of a measurement, which are stored in CASE.json instead."""


class Results(Protocol):
    """Interface of a study's results."""

    @property
    def comparisons(self) -> Mapping[str, Comparison]:
        """Case name -> comparison."""

    def tables(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Returns formatted rows by table title."""


def numeric_rows(results: Any) -> Iterator[dict[str, Any]]:
    """Yields rows of numbers for the manifest: one per row, case or number of the results.

    Args:
        results: dataclass with sequences and mappings of dataclasses or mappings.
    Returns: rows; `table` is the field that a row comes from, `name` its key in a mapping.
    """
    for field in dataclasses.fields(results):
        value = getattr(results, field.name)
        if isinstance(value, Mapping):
            rows = [{"name": name, **flat_row(each)} for name, each in value.items()]
        elif isinstance(value, tuple):
            rows = [flat_row(each) for each in value]
        else:
            rows = [{field.name: value}]
        yield from ({"table": field.name, **row} for row in rows)


def flat_row(row: Any) -> dict[str, Any]:
    """Flattens a row: nested dataclass fields become `OUTER_INNER`, without `SERIES`.

    Other values, such as the reason why a peer is missing, become a single `value`.
    """
    if isinstance(row, Mapping):
        return dict(row)
    if not dataclasses.is_dataclass(row):
        return {"value": row}
    row_values: dict[str, Any] = {}
    for name in (field.name for field in dataclasses.fields(row) if field.name not in SERIES):
        value = getattr(row, name)
        if dataclasses.is_dataclass(value):
            row_values |= {f"{name}_{inner}": each for inner, each in flat_row(value).items()}
        else:
            row_values[name] = value
    return row_values
