"""Results of a study: its tables, its comparisons, and flat rows of numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from chop.bench import Comparison

SERIES = ("readings", "variants", "environment")
"""Fields with every block of a measurement; they are in CASE.json."""


class Results(Protocol):
    """What was measured."""

    @property
    def comparisons(self) -> Mapping[str, Comparison]:
        """Names of the cases -> their times."""

    def tables(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Rows by title, as formatted text."""


def numeric_rows(found: Any) -> Iterator[dict[str, Any]]:
    """Rows of numbers for the manifest: one per row, case or number of the results.

    Args:
        found: a dataclass: its sequences and mappings hold the rows, as dataclasses or mappings.
    Returns: rows; `table` names the field that a row is from, `name` its key in a mapping.
    """
    for field in dataclasses.fields(found):
        value = getattr(found, field.name)
        if isinstance(value, Mapping):
            rows = [{"name": name, **flat_row(each)} for name, each in value.items()]
        elif isinstance(value, tuple):
            rows = [flat_row(each) for each in value]
        else:
            rows = [{field.name: value}]
        yield from ({"table": field.name, **row} for row in rows)


def flat_row(row: Any) -> dict[str, Any]:
    """The fields of a row; those of a dataclass in it by `OUTER_INNER`, without its `SERIES`.

    What is neither a dataclass nor a mapping, such as why a peer is missing, is one `value`.
    """
    if isinstance(row, Mapping):
        return dict(row)
    if not dataclasses.is_dataclass(row):
        return {"value": row}
    found: dict[str, Any] = {}
    for name in (field.name for field in dataclasses.fields(row) if field.name not in SERIES):
        value = getattr(row, name)
        if dataclasses.is_dataclass(value):
            found |= {f"{name}_{inner}": each for inner, each in flat_row(value).items()}
        else:
            found[name] = value
    return found
