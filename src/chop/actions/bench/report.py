"""Studies as jobs: measured, printed as tables, written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from chop.actions.job import Job, Output, load_nothing, run_job
from chop.report.charts.ratios import ratio_charts
from chop.report.report import Block, Heading, Note, Report, Table, figure, show, write_report
from chop.runs.progress import announced_steps
from chop.studies.results import Results, numeric_rows
from chop.studies.settings import StudyConfig
from chop.train import usable_device

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
    name = measure.__name__.replace("_", " ")

    def run(config: S, workload: None, output: Output) -> Report[R]:
        with announced_steps():
            return build_report(measure(config))

    study: Job[S, None, R] = Job(name, run, load_nothing)
    return run_job(study, config)


def build_report(found: R) -> Report[R]:
    """Tables in `tables.md`, and per case CASE.json and CASE.svg."""
    blocks: list[Block] = []
    for title, rows in found.tables().items():
        name, _, about = title.partition(". ")
        blocks += [Heading(name), Table(name, rows), Note(about)] if rows else []
    cases = found.comparisons.items()
    return Report(
        "",
        {"tables.md": blocks},
        found,
        list(numeric_rows(found)),
        figures={f"{case}.svg": figure(ratio_charts, measured, case) for case, measured in cases},
        files={f"{case}.json": measured.save for case, measured in cases},
        result_file="",
    )


def write_results(found: Results, out: Path) -> None:
    """Prints the tables; writes `tables.md`, and per case CASE.json and CASE.svg, into `out`."""
    report = build_report(found)
    show(*report.blocks)
    write_report(report, out)
