"""Results of a `chop bench` command: tables on the screen, and files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from chop import runs
from chop.bench import Comparison
from chop.kernels.matmul_precision import matmul_precision
from chop.report.bench_plots import plot_ratios
from chop.studies.settings import StudyConfig
from chop.tables import print_table, write_markdown
from chop.train import usable_device

SERIES = ("readings", "variants", "environment")
"""Fields with every block of a measurement; they are in CASE.json."""


class Results(Protocol):
    """What was measured."""

    @property
    def comparisons(self) -> Mapping[str, Comparison]:
        """Names of the cases -> their times."""

    def tables(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Rows by title, as formatted text."""


S = TypeVar("S", bound=StudyConfig)
R = TypeVar("R", bound=Results)


def measure_and_write(measure: Callable[[S], R], config: S) -> R:
    """Measures, and writes the results; device and folder are tried first.

    Args:
        measure: `bench_attention` and so on; the manifest has its name.
        config: what to measure, and where to write.
    Returns: the results.
    Raises:
        ConfigError: the device cannot be used here.
        WriteError: it cannot be written to.
    """
    usable_device(config.device)
    with (
        matmul_precision(config.matmul_precision),
        runs.start(measure.__name__.replace("_", " "), config, config.out) as run,
    ):
        found = measure(config)
        write_results(found, config.out)
        run.rows = list(numeric_rows(found))
    return found


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


def write_results(found: Results, out: Path) -> None:
    """Prints the tables; writes `tables.md`, and per case CASE.json and CASE.svg, into `out`."""
    tables = found.tables()
    for title, rows in tables.items():
        print_table(title, rows)
    parts = ((f"## {title}", rows) for title, rows in tables.items() if rows)
    write_markdown(out / "tables.md", *(part for pair in parts for part in pair))
    for case, measured in found.comparisons.items():
        measured.save(out / f"{case}.json")
        plot_ratios(out / f"{case}.svg", measured, case)
