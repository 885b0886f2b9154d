"""Sensitivity job: the loss of each layer in each format, without a search."""

from __future__ import annotations

import math
from typing import Any

from chop import runs
from chop.actions.chance import check_float_model
from chop.actions.settings.search import SensitivityConfig
from chop.actions.sweep.points import Point, identity_of, measure_all
from chop.actions.sweep.record import write_figure, write_table
from chop.actions.workload import Workload, settings_with, workload_for
from chop.files import write_json
from chop.kernels.matmul_precision import matmul_precision
from chop.mixed_precision.layer_sensitivity import Sensitivity, line
from chop.report.layer_maps import plot_layer_map
from chop.runs import Journal
from chop.train import Metric


def measure_sensitivity(
    config: SensitivityConfig, workload: Workload | None = None
) -> list[dict[str, Any]]:
    """Measures every layer in every format, all others float, on the test rows.

    Writes into `config.out`: `points.jsonl` (each layer and format the moment it is measured; run
    again, the job goes on from there), `table.csv`, `table.md`, `sensitivity.json`, and for each
    metric a map of the layers, `kl.svg` and `.png` and so on.

    Returns: one mapping for each layer and format, see `chop.search.sensitivity`.
    Raises:
        ConfigError: settings that do not fit together.
        UnavailableError: the model or the data set is not there.
    """
    with matmul_precision(config.matmul_precision):
        workload = workload_for(config, workload)
        check_float_model(workload, config)
        settings = settings_with(config, workload)
        with runs.start("search sensitivity", settings, config.out) as run:
            run.rows = rows = _measure(config, workload)
            title = f"{workload.title}: each layer alone in each format"
            with run.results():
                _write(config, title, rows, workload.task.metric)
    return rows


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
    known = {**identity_of(workload), **settings, "seed": config.seed}

    def point(name: str, text: str) -> Point:
        about = {**known, "layer": name, "format": text}
        return Point(f"{name} {text}", about, lambda: probe.measure(name, text))

    points = [point(*pair) for pair in problem.pairs]
    title = workload.title
    results = measure_all(title, points, Journal(config.out / "points.jsonl"), workload.task.metric)
    return [
        {**line(problem, *pair), **found}
        for pair, found in zip(problem.pairs, results, strict=True)
    ]


def _write(
    config: SensitivityConfig, title: str, rows: list[dict[str, Any]], metric: Metric
) -> None:
    plain = ("bits", metric.name)
    formatted = [{n: x if n in plain else _format(x) for n, x in row.items()} for row in rows]
    write_table(config.out, title, formatted, {metric.name: metric})
    write_json(config.out / "sensitivity.json", rows)
    for name in config.metrics:
        cells = {(row["layer"], row["format"]): row[name] for row in rows}
        if any(math.isfinite(value) for value in cells.values()):
            write_figure(
                config.out / name,
                plot_layer_map,
                cells,
                xlabel="format",
                measure=name,
                title=title,
                log=True,
            )


def _format(value: Any) -> Any:
    """Sensitivities span many powers of ten."""
    if not isinstance(value, float):
        return value
    return "-" if value != value else f"{value:.3g}"
