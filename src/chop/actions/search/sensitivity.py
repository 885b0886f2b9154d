"""Sensitivity job: the loss of each layer in each format, without a search."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from chop.actions.job import Job, Output, load_checked, run_job
from chop.actions.search.settings import SensitivityConfig
from chop.actions.sweep.points import Point, get_identity, measure_all
from chop.problems.mixed_precision.layer_sensitivity import Sensitivity, line
from chop.report.charts.heat_map import layer_map_charts
from chop.report.measured import MeasuredTable, report_of_tables
from chop.report.report import Report, Writer, figure_files
from chop.runs import Journal
from chop.runs.interrupt import describe_saved_points
from chop.workloads.workload import Workload


def measure_sensitivity(
    config: SensitivityConfig, workload: Workload | None = None
) -> list[dict[str, Any]]:
    """Measures every layer in every format on the test rows, with all other layers in float.

    Writes into `config.out`: `points.jsonl` (finished points, from which the same job resumes),
    `table.csv`, `table.md`, `sensitivity.json`, and a map of the layers for each metric, such as
    `kl.svg` and `.png`.

    Returns: one mapping per layer and format, see `chop.search.sensitivity`.
    Raises:
        ConfigError: if settings do not fit together.
        UnavailableError: if the model or the data set is missing.
    """
    return run_job(SENSITIVITY, config, workload)


def _sensitivity(
    config: SensitivityConfig, workload: Workload, output: Output
) -> Report[list[dict[str, Any]]]:
    rows, metric = _measure(config, workload), workload.task.metric
    title = f"{workload.title}: one layer at a time in each format"
    plain = ("bits", metric.name)
    formatted = [{n: x if n in plain else _cell(x) for n, x in row.items()} for row in rows]
    report = report_of_tables(
        {"table": MeasuredTable(title, formatted, {metric.name: metric})},
        rows,
        _figures(config, title, rows),
    )
    return replace(report, result_file="sensitivity.json", rows=rows)


SENSITIVITY = Job(
    "search sensitivity",
    _sensitivity,
    load_checked,
    lambda config: describe_saved_points(_journal(config)),
)


def _journal(config: SensitivityConfig) -> Path:
    return config.out / "points.jsonl"


def _measure(config: SensitivityConfig, workload: Workload) -> list[dict[str, Any]]:
    problem = config.problem(workload, workload.test)
    probe = Sensitivity(
        problem, workload.train, config.metrics, vectors=config.vectors, seed=config.seed
    )
    settings = {
        **config.identity(),
        "formats": None,
        "metrics": config.metrics,
        "vectors": config.vectors,
    }
    known = {**get_identity(workload), **settings, "seed": config.seed}

    names = tuple(config.metrics)

    def point(name: str, text: str) -> Point:
        about = {**known, "layer": name, "format": text}
        return Point(f"{name} {text}", about, lambda: probe.measure(name, text), names=names)

    points = [point(*pair) for pair in problem.pairs]
    title = workload.title
    results = measure_all(title, points, Journal(_journal(config)), workload.task.metric)
    return [
        {**line(problem, *pair), **values}
        for pair, values in zip(problem.pairs, results, strict=True)
    ]


def _figures(
    config: SensitivityConfig, title: str, rows: list[dict[str, Any]]
) -> dict[str, Writer]:
    files: dict[str, Writer] = {}
    for name in config.metrics:
        cells = {(row["layer"], row["format"]): row[name] for row in rows}
        if any(math.isfinite(value) for value in cells.values()):
            about = {"xlabel": "format", "measure": name, "title": title, "log": True}
            files |= figure_files(name, layer_map_charts, cells, **about)
    return files


def _cell(value: Any) -> Any:
    """Formats a sensitivity with three digits, since they span many powers of ten."""
    if not isinstance(value, float):
        return value
    return "-" if value != value else f"{value:.3g}"
