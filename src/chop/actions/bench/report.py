"""Report of a benchmark study: tables, figures and measurements."""

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
    """Runs a study, and writes its results; checks device and folder first.

    Args:
        measure: `bench_attention` and so on; its name becomes the kind in the manifest.
        config: settings of the study, with the output folder.
    Returns: the results.
    Raises:
        ConfigError: if the device cannot be used here.
        WriteError: if the folder cannot be written.
    """
    usable_device(config.device)
    name = measure.__name__.replace("_", " ")

    def run(config: S, workload: None, output: Output) -> Report[R]:
        with announced_steps():
            return build_report(measure(config))

    study: Job[S, None, R] = Job(name, run, load_nothing)
    return run_job(study, config)


def build_report(results: R) -> Report[R]:
    """Builds the report: `tables.md`, and per case CASE.json and CASE.svg."""
    blocks: list[Block] = []
    for title, rows in results.tables().items():
        name, _, about = title.partition(". ")
        blocks += [Heading(name), Table(name, rows), Note(about)] if rows else []
    cases = results.comparisons.items()
    return Report(
        "",
        {"tables.md": blocks},
        results,
        list(numeric_rows(results)),
        figures={
            f"{case}.svg": figure(ratio_charts, measured, f"speed, {case}", measured.baseline)
            for case, measured in cases
        },
        files={f"{case}.json": measured.save for case, measured in cases},
        result_file="",
    )


def write_results(results: Results, out: Path) -> None:
    """Prints the tables; writes `tables.md`, and per case CASE.json and CASE.svg, into `out`."""
    report = build_report(results)
    show(*report.blocks)
    write_report(report, out)
