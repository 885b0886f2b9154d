"""Accuracy against bit width: rounded after training (PTQ) and trained with rounding (QAT)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import get_console

from chop import runs
from chop.actions.interrupt import points_are_kept, with_interruption_note
from chop.actions.ptq import quantize_after_training
from chop.actions.settings.sweep import DERIVED, QuantizeSweepConfig
from chop.actions.sweep.experiment import JOURNAL, Experiment
from chop.actions.sweep.record import write_figure, write_table
from chop.actions.workload import Workload, settings_with, workload_for
from chop.formats import Integer
from chop.ir.graph import MaseGraph
from chop.passes import calculate_avg_bits_mg_analysis_pass
from chop.report.plots import Curve, plot_accuracy, plot_heat_map

Setting = tuple[int, int | str]
"""A width, and a fraction or the rule that derives one."""


def quantize_sweep(
    config: QuantizeSweepConfig, workload: Workload | None = None
) -> list[dict[str, Any]]:
    """Measures every width and fraction after training, and trained with rounding.

    Writes into `config.out`: `points.jsonl` (each point as it is finished; run again, the sweep
    goes on from there), `table.csv`, `table.md`, `accuracy.svg` and `.png` (named by the metric),
    and, where widths and fractions both vary, `heatmap-ptq` and `heatmap-qat`.

    Args:
        config: the settings.
        workload: a trained model and rows of your own, see `Workload.of`; default, what `config`
            names.
    Returns: one mapping per width and fraction: `width`, `frac_width`, `bits` (average storage
        per parameter of the whole model), `float`, `PTQ` and `QAT` (accuracies from 0 to 1, or
        what the task's metric is).
    Raises:
        ConfigError: settings that do not fit together.
        UnavailableError: the model or the data set is not there.
    """
    with with_interruption_note(lambda: points_are_kept(config.out / JOURNAL)):
        workload = workload_for(config, workload)
    with runs.start("sweep quantize", settings_with(config, workload), config.out) as run:
        run.rows = rows = _sweep(config, workload)
    return rows


def _sweep(config: QuantizeSweepConfig, workload: Workload) -> list[dict[str, Any]]:
    metric = workload.task.metric
    lines = config.lines()
    settings = list(dict.fromkeys(setting for line in lines.values() for setting in line))
    title, left_out = workload.title, config.left_out()
    if left_out:
        text = f"Not measured, because a fraction has to be below its width: {', '.join(left_out)}."
        get_console().print(text, highlight=False)
    measured = _experiment(config, workload).measure(workload, settings, config.out)
    rows = [_row(measured, setting, metric.name) for setting in settings]
    columns = dict.fromkeys(("float", "PTQ", "QAT"), metric)
    write_table(config.out, f"{title}: {metric.name} against width", rows, columns)
    _draw(config, workload, lines, rows)
    return rows


def _experiment(config: QuantizeSweepConfig, workload: Workload) -> Experiment[Setting]:
    rounding = {"operators": config.operators, "calibration_rows": config.calibration_rows}

    def rounded(mg: MaseGraph, setting: Setting) -> MaseGraph:
        number_format = Integer(*setting)  # type: ignore[arg-type]
        return quantize_after_training(
            mg, number_format, config.operators, workload, config.calibration_rows
        )

    return Experiment(
        stages=("PTQ", "QAT"),
        change=rounded,
        describe=lambda mg: {"bits": calculate_avg_bits_mg_analysis_pass(mg)[1]["w_avg_bit"]},
        settings_of=lambda setting: {**rounding, "format": setting},
        label=lambda setting: f"{setting[0]}.{setting[1]}",
        training=workload.tuning(config.qat_epochs, config.qat_lr, config),
    )


def _row(
    measured: Mapping[Any, Mapping[str, float]], setting: Setting, metric: str
) -> dict[str, Any]:
    row: dict[str, Any] = {"width": setting[0], "frac_width": setting[1]}
    row["bits"] = measured["PTQ", setting]["bits"]
    row["float"] = measured["float", None][metric]
    found = {name: measured.get((name, setting)) for name in ("PTQ", "QAT")}
    return row | {name: result[metric] for name, result in found.items() if result}


def _draw(
    config: QuantizeSweepConfig,
    workload: Workload,
    lines: Mapping[str, list[Setting]],
    rows: list[dict[str, Any]],
) -> None:
    found = {(row["width"], row["frac_width"]): row for row in rows}
    methods = [name for name in ("PTQ", "QAT") if name in rows[0]]
    title, metric = workload.title, workload.task.metric
    curves = []
    for label, settings in lines.items():
        for method in methods:
            points = [(width, found[width, frac][method]) for width, frac in settings]
            name = method if len(lines) == 1 else f"{method}, fraction {label}"
            family = method if len(lines) == 1 else label
            curves.append(Curve(name, points, family, method == "PTQ" and len(lines) > 1))
    write_figure(
        config.out / metric.name,
        plot_accuracy,
        curves,
        {"float": rows[0]["float"], **workload.baselines},
        metric=metric,
        xlabel="width (bits)",
        title=f"{title}: {metric.name} against width",
        ticks=sorted({row["width"] for row in rows}),
    )
    fixed = set(lines) - {"half", *DERIVED}
    numbers = {key: row for key, row in found.items() if str(key[1]) in fixed}
    if len(fixed) > 1 and len({width for width, _ in numbers}) > 1:
        for method in methods:
            write_figure(
                config.out / f"heatmap-{method.lower()}",
                plot_heat_map,
                {key: row[method] for key, row in numbers.items()},
                xlabel="width (bits)",
                ylabel="fraction (bits)",
                title=f"{title}: {method}",
                metric=metric,
            )
