"""What a `chop bench` command leaves: tables on the screen, and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from chop import runs
from chop.bench import Comparison
from chop.files import write_text
from chop.report.bench_plots import plot_ratios
from chop.tables import markdown_table, print_table
from chop.train import usable_device


class Results(Protocol):
    """What was measured."""

    @property
    def comparisons(self) -> Mapping[str, Comparison]:
        """Names of the cases -> their times."""

    def tables(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Rows by title, as formatted text."""


class Settings(Protocol):
    """What to measure, and where to write it."""

    @property
    def out(self) -> Path:
        """The folder for everything that is written."""

    @property
    def device(self) -> str:
        """Where to measure."""


S = TypeVar("S", bound=Settings)
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
    with runs.start(measure.__name__.replace("_", " "), config, config.out) as run:
        found = measure(config)
        write_results(found, config.out)
        run.rows = [{"table": t, **row} for t, rows in found.tables().items() for row in rows]
    return found


def write_results(found: Results, out: Path) -> None:
    """Prints the tables; writes `tables.md`, and per case CASE.json and CASE.svg, into `out`."""
    tables = found.tables()
    for title, rows in tables.items():
        print_table(title, rows)
    texts = [f"## {title}\n\n{markdown_table(rows)}\n" for title, rows in tables.items() if rows]
    write_text(out / "tables.md", "\n".join(texts))
    for case, measured in found.comparisons.items():
        measured.save(out / f"{case}.json")
        plot_ratios(out / f"{case}.svg", measured, case)
