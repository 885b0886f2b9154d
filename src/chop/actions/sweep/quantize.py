"""Quantization sweep: accuracy against bit width, after training (PTQ) and with QAT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich import get_console

from chop.actions.job import Job, Output, load_checked, run_job
from chop.actions.next_steps import steps_after_sweep
from chop.actions.sweep.experiment import FLOAT, JOURNAL, Sweep
from chop.actions.sweep.rounding import (
    PTQ,
    STAGES,
    UNPRINTED,
    Setting,
    build_rounding,
    get_row,
    stages_in,
)
from chop.actions.sweep.settings import DERIVED, HALF, QuantizeSweepConfig
from chop.actions.sweep.split_widths import sweep_split_widths
from chop.actions.sweep.verdict import note_weak_training, with_verdict
from chop.report.charts.accuracy import Curve, accuracy_charts
from chop.report.charts.heat_map import heat_map_charts
from chop.report.measured import TIMES, MeasuredTable, list_points, report_of_tables
from chop.report.report import Report, Step, Writer, figure_files
from chop.runs import Outcome
from chop.runs.interrupt import describe_saved_points
from chop.workloads.workload import Workload


def quantize_sweep(
    config: QuantizeSweepConfig, workload: Workload | None = None
) -> list[dict[str, Any]]:
    """Measures every width and fraction after training (PTQ), and trained with rounding (QAT).

    Writes into `config.out`: `points.jsonl` (finished points, from which the same sweep resumes),
    `table.csv`, `table.md`, `accuracy.svg` and `.png` (named by the metric), and `heatmap-ptq` and
    `heatmap-qat` if widths and fractions both vary. With `config.integer_bits` or
    `config.fraction_bits` it varies these instead, see `chop.actions.sweep.split_widths`.

    Args:
        config: settings of the sweep.
        workload: your own trained model and rows, see `Workload.of`. Default: the model and
            data that `config` names.
    Returns: one mapping per width and fraction: `width`, `frac_width`, `bits` (average storage
        per parameter of the whole model), `float`, `PTQ`, `QAT`, and `seconds` of the point. Scores
        are accuracies from 0 to 1, or the task's metric. They are means, with the range over seeds
        or the bounds of the 95 % interval, `PTQ (95 % low)` and `PTQ (95 % high)` ... With
        validation rows also `PTQ validation` and `QAT validation`, which other jobs choose by.
    Raises:
        ConfigError: if settings do not fit together.
        UnavailableError: if the model or the data set is missing.
    """
    return run_job(QUANTIZE, config, workload)


def _sweep(
    config: QuantizeSweepConfig, workload: Workload, output: Output
) -> Report[list[dict[str, Any]]]:
    vary = sweep_split_widths if config.splits_widths else _sweep_widths
    return vary(config, workload)


QUANTIZE = Job(
    "sweep quantize",
    _sweep,
    load_checked,
    lambda config: describe_saved_points(config.out / JOURNAL),
)


def _sweep_widths(config: QuantizeSweepConfig, workload: Workload) -> Report[list[dict[str, Any]]]:
    metric, title = workload.task.metric, workload.title
    lines, unmeasured = config.lines(), config.unmeasured()
    settings = list(dict.fromkeys(setting for line in lines.values() for setting in line))
    if unmeasured:
        text = f"Skipped {', '.join(unmeasured)}: a fraction must be below its width."
        get_console().print(text, highlight=False, markup=False)
    results = Sweep(build_rounding(config, workload), workload).measure(settings, config.out)
    rows = [
        {"width": width, "frac_width": frac, **get_row(results, (width, frac), workload)}
        for width, frac in settings
    ]
    note_weak_training(rows, STAGES, metric, "qat")
    heading = f"{title}: {metric.name} against width"
    columns = dict.fromkeys((FLOAT, *STAGES), metric)
    table = MeasuredTable(heading, rows, columns, workload.about_test, UNPRINTED, TIMES)
    figures = _accuracy_figures(workload, lines, rows, heading)
    report = report_of_tables({"table": table}, rows, figures | _heat_maps(workload, lines, rows))
    report = with_verdict(report, metric, stages_in(rows), "width", "least", data=workload.dataset)
    return replace(report, steps=_steps(config, workload, rows, report.outcome))


def _steps(
    config: QuantizeSweepConfig,
    workload: Workload,
    rows: list[dict[str, Any]],
    outcome: Outcome | None,
) -> list[Step]:
    """Returns next steps with the smallest good format, for `chop compress`."""
    value = None if outcome is None else outcome.value
    matching = [row for row in rows if value in [row.get(stage) for stage in STAGES]]
    least = min(matching, key=lambda row: row["width"], default=None)
    text = "" if least is None else f"{least['width']}.{least['frac_width']}"
    return steps_after_sweep(config, workload.name, text)


def _accuracy_figures(
    workload: Workload,
    lines: Mapping[str, list[Setting]],
    rows: list[dict[str, Any]],
    title: str,
) -> dict[str, Writer]:
    row_at = {(row["width"], row["frac_width"]): row for row in rows}
    metric, curves = workload.task.metric, []
    for label, settings in lines.items():
        for stage in stages_in(rows):
            points, ranges = list_points([row_at[setting] for setting in settings], "width", stage)
            name = stage if len(lines) == 1 else f"{stage}, fraction {label}"
            family = stage if len(lines) == 1 else label
            curves.append(Curve(name, points, family, stage == PTQ and len(lines) > 1, ranges))
    return figure_files(
        metric.name,
        accuracy_charts,
        curves,
        {FLOAT: rows[0][FLOAT], **workload.baselines},
        metric=metric,
        xlabel="width (bits)",
        title=title,
        ticks=sorted({row["width"] for row in rows}),
    )


def _heat_maps(
    workload: Workload, lines: Mapping[str, list[Setting]], rows: list[dict[str, Any]]
) -> dict[str, Writer]:
    """Returns heat maps of numeric fractions, if they and the widths both vary."""
    fixed, files = set(lines) - {HALF, *DERIVED}, dict[str, Writer]()
    numbers = {
        (row["width"], row["frac_width"]): row for row in rows if str(row["frac_width"]) in fixed
    }
    if len(fixed) > 1 and len({width for width, _ in numbers}) > 1:
        for stage in stages_in(rows):
            files |= figure_files(
                f"heatmap-{stage.lower()}",
                heat_map_charts,
                {key: row[stage] for key, row in numbers.items()},
                xlabel="width (bits)",
                ylabel="fraction (bits)",
                title=f"{workload.title}: {stage}",
                metric=workload.task.metric,
            )
    return files
