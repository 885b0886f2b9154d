"""Accuracy against bit width: rounded after training (PTQ) and trained with rounding (QAT)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import get_console

from chop import runs
from chop.actions.chance import check_float_model
from chop.actions.interrupt import points_are_kept, with_interruption_note
from chop.actions.settings.sweep import DERIVED, HALF, QuantizeSweepConfig
from chop.actions.sweep.experiment import FLOAT, JOURNAL, Sweep
from chop.actions.sweep.record import points_of, write_figure, write_table
from chop.actions.sweep.rounding import (
    PTQ,
    STAGES,
    UNPRINTED,
    Setting,
    rounding_of,
    row_of,
    stages_in,
)
from chop.actions.sweep.split_widths import sweep_split_widths
from chop.actions.workload import Workload, settings_with, workload_for
from chop.kernels.matmul_precision import matmul_precision
from chop.report.plots import Curve, plot_accuracy, plot_heat_map


def quantize_sweep(
    config: QuantizeSweepConfig, workload: Workload | None = None
) -> list[dict[str, Any]]:
    """Measures every width and fraction after training, and trained with rounding.

    Writes into `config.out`: `points.jsonl` (each point as it is finished; run again, the sweep
    goes on from there), `table.csv`, `table.md`, `accuracy.svg` and `.png` (named by the metric),
    and, where widths and fractions both vary, `heatmap-ptq` and `heatmap-qat`. With
    `config.integer_bits` or `config.fraction_bits` it varies these instead, see
    `chop.actions.sweep.split_widths`.

    Args:
        config: the settings.
        workload: a trained model and rows of your own, see `Workload.of`; default, what `config`
            names.
    Returns: one mapping per width and fraction: `width`, `frac_width`, `bits` (average storage
        per parameter of the whole model), `float`, `PTQ` and `QAT` (accuracies from 0 to 1, or
        what the task's metric is; means over the seeds, with several of these their range too, else
        the ends of their 95 % interval, `PTQ (95 % low)` and `PTQ (95 % high)` ...),
        `seconds` that the point took, and, where there are validation rows, `PTQ validation` and
        `QAT validation`, which other jobs choose by.
    Raises:
        ConfigError: settings that do not fit together.
        UnavailableError: the model or the data set is not there.
    """
    with matmul_precision(config.matmul_precision):
        with with_interruption_note(lambda: points_are_kept(config.out / JOURNAL)):
            workload = workload_for(config, workload)
            check_float_model(workload, config)
        with runs.start("sweep quantize", settings_with(config, workload), config.out) as run:
            sweep = sweep_split_widths if config.splits_widths else _sweep_widths
            rows = sweep(config, workload, run)
    return rows


def _sweep_widths(
    config: QuantizeSweepConfig, workload: Workload, run: runs.Run
) -> list[dict[str, Any]]:
    metric, title = workload.task.metric, workload.title
    lines, left_out = config.lines(), config.left_out()
    settings = list(dict.fromkeys(setting for line in lines.values() for setting in line))
    if left_out:
        text = f"Not measured, because a fraction has to be below its width: {', '.join(left_out)}."
        get_console().print(text, highlight=False)
    found = Sweep(rounding_of(config, workload), workload).measure(settings, config.out)
    run.rows = rows = [
        {"width": width, "frac_width": frac, **row_of(found, (width, frac), workload)}
        for width, frac in settings
    ]
    columns = dict.fromkeys((FLOAT, *STAGES), metric)
    heading = f"{title}: {metric.name} against width"
    with run.results():
        write_table(config.out, heading, rows, columns, workload.about_test, unprinted=UNPRINTED)
        _draw(config, workload, lines, rows)
    return rows


def _draw(
    config: QuantizeSweepConfig,
    workload: Workload,
    lines: Mapping[str, list[Setting]],
    rows: list[dict[str, Any]],
) -> None:
    found = {(row["width"], row["frac_width"]): row for row in rows}
    title, metric = workload.title, workload.task.metric
    curves = []
    for label, settings in lines.items():
        for stage in stages_in(rows):
            points, ranges = points_of([found[setting] for setting in settings], "width", stage)
            name = stage if len(lines) == 1 else f"{stage}, fraction {label}"
            family = stage if len(lines) == 1 else label
            curves.append(Curve(name, points, family, stage == PTQ and len(lines) > 1, ranges))
    write_figure(
        config.out / metric.name,
        plot_accuracy,
        curves,
        {FLOAT: rows[0][FLOAT], **workload.baselines},
        metric=metric,
        xlabel="width (bits)",
        title=f"{title}: {metric.name} against width",
        ticks=sorted({row["width"] for row in rows}),
    )
    fixed = set(lines) - {HALF, *DERIVED}
    numbers = {key: row for key, row in found.items() if str(key[1]) in fixed}
    if len(fixed) > 1 and len({width for width, _ in numbers}) > 1:
        for stage in stages_in(rows):
            write_figure(
                config.out / f"heatmap-{stage.lower()}",
                plot_heat_map,
                {key: row[stage] for key, row in numbers.items()},
                xlabel="width (bits)",
                ylabel="fraction (bits)",
                title=f"{title}: {stage}",
                metric=metric,
            )
