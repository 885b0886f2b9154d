"""Accuracy against sparsity: pruned, and fine-tuned after that, per method."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from chop import passes, runs
from chop.actions.interrupt import points_are_kept, with_interruption_note
from chop.actions.ptq import present_operators
from chop.actions.settings.sweep import PruneSweepConfig
from chop.actions.sweep.experiment import JOURNAL, Experiment
from chop.actions.sweep.record import write_figure, write_table
from chop.actions.workload import Workload, settings_with, workload_for
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantizedOperator
from chop.nn.sparsity import SCORES
from chop.report.plots import Curve, plot_accuracy
from chop.train import calibration_batches

Setting = tuple[str, float]
"""A method and a sparsity."""


def prune_sweep(config: PruneSweepConfig, workload: Workload | None = None) -> list[dict[str, Any]]:
    """Measures every method and sparsity after pruning, and fine-tuned after that.

    Writes into `config.out`: `points.jsonl` (each point as it is finished; run again, the sweep
    goes on from there), `table.csv`, `table.md`, `accuracy.svg` and `.png` (named by the metric).

    Args:
        config: the settings.
        workload: a trained model and rows of your own, see `Workload.of`; default, what `config`
            names.
    Returns: one mapping per method and sparsity: `method`, `sparsity` (asked), `actual sparsity`
        of the chosen layers after everything, `float`, `pruned` and `fine-tuned` (accuracies from
        0 to 1, or what the task's metric is).
    Raises:
        ConfigError: settings that do not fit together.
        UnavailableError: the model or the data set is not there.
    """
    with with_interruption_note(lambda: points_are_kept(config.out / JOURNAL)):
        workload = workload_for(config, workload)
    with runs.start("sweep prune", settings_with(config, workload), config.out) as run:
        run.rows = rows = _sweep(config, workload)
    return rows


def _sweep(config: PruneSweepConfig, workload: Workload) -> list[dict[str, Any]]:
    _check_methods(config, workload)
    metric = workload.task.metric
    settings = list(dict.fromkeys(itertools.product(config.methods, config.shares())))
    title = workload.title
    measured = _experiment(config, workload).measure(workload, settings, config.out)
    rows = [_row(measured, setting, metric.name) for setting in settings]
    columns = dict.fromkeys(("float", "pruned", "fine-tuned"), metric)
    write_table(config.out, f"{title}: {metric.name} against sparsity", rows, columns)
    write_figure(
        config.out / metric.name,
        plot_accuracy,
        _curves(config, rows),
        {"float": rows[0]["float"], **workload.baselines},
        metric=metric,
        xlabel="sparsity",
        title=f"{title}: {metric.name} against sparsity",
        ticks=sorted({row["sparsity"] for row in rows}),
    )
    return rows


def _experiment(config: PruneSweepConfig, workload: Workload) -> Experiment[Setting]:
    rows = config.calibration_rows

    def pruned(mg: MaseGraph, setting: Setting) -> MaseGraph:
        batches = calibration_batches(mg.model, workload.train, rows=rows, with_labels=True)
        include = present_operators(mg, config.operators)
        pass_args = {**config.pass_args(setting), "include": include, "batches": batches}
        return passes.prune_transform_pass(mg, pass_args)[0]

    return Experiment(
        stages=("pruned", "fine-tuned"),
        change=pruned,
        describe=lambda mg: {"sparsity": _sparsity(mg)},
        settings_of=lambda setting: {**config.pass_args(setting), "calibration_rows": rows},
        label=lambda setting: f"{setting[0]} {setting[1]:g}",
        training=workload.tuning(config.finetune_epochs, config.finetune_lr, config),
    )


def _sparsity(mg: MaseGraph) -> float:
    """The share of the pruned layers' weights that does not count."""
    layers = [m for m in mg.model.modules() if isinstance(m, QuantizedOperator) and m.is_pruned]
    hidden = [layer.effective("weight") == 0 for layer in layers]
    return sum(int(mask.sum()) for mask in hidden) / max(1, sum(mask.numel() for mask in hidden))


def _check_methods(config: PruneSweepConfig, workload: Workload) -> None:
    """Raises ConfigError where a method needs a loss that pruning does not know."""
    needy = [name for name in config.methods if SCORES[name].needs == "gradients"]
    if needy and workload.task.name != "classification":
        raise ConfigError(
            f"methods: {', '.join(needy)} looks at gradients of a classifier's loss, the task is "
            f"'{workload.task.name}': take l1-norm, random or wanda."
        )


def _row(
    measured: Mapping[Any, Mapping[str, float]], setting: Setting, metric: str
) -> dict[str, Any]:
    stages = [name for name in ("pruned", "fine-tuned") if (name, setting) in measured]
    return {
        "method": setting[0],
        "sparsity": setting[1],
        "actual sparsity": measured[stages[-1], setting]["sparsity"],
        "float": measured["float", None][metric],
        **{name: measured[name, setting][metric] for name in stages},
    }


def _curves(config: PruneSweepConfig, rows: list[dict[str, Any]]) -> list[Curve]:
    stages = [name for name in ("pruned", "fine-tuned") if name in rows[0]]
    curves = []
    for method in dict.fromkeys(config.methods):
        for stage in stages:
            points = [(row["sparsity"], row[stage]) for row in rows if row["method"] == method]
            curves.append(Curve(f"{method}, {stage}", points, method, dashed=stage == "pruned"))
    return curves
