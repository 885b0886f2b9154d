"""Accuracy against sparsity: pruned, and fine-tuned after that, per method."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from chop import passes, runs
from chop.actions.ptq import check_operators, present_operators, weighted_operators
from chop.actions.sweep.experiment import Experiment
from chop.actions.sweep.grid import spread
from chop.actions.sweep.points import measure_all
from chop.actions.sweep.record import write_figure, write_table
from chop.actions.workload import Workload, WorkloadConfig, settings_with, workload_for
from chop.config import convert, parse
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.ops import OPS
from chop.nn.quantized import QuantizedOperator
from chop.nn.sparsity import SCORES
from chop.pruning.settings import PruneConfig
from chop.report.plots import Curve, plot_accuracy
from chop.runs import Journal
from chop.train import calibration_batches

Setting = tuple[str, float]
"""A method and a sparsity."""


def _multiplied() -> tuple[str, ...]:
    return tuple(name for name in weighted_operators() if OPS[name].is_product)


@dataclass(frozen=True)
class PruneSweepConfig(WorkloadConfig):
    """Settings of `chop sweep prune`; a TOML file has the same keys.

    Attributes:
        sparsity: shares of the weights to remove: numbers, or ranges `first:last:step`.
        methods: scores of `prune_transform_pass`, one pair of lines each.
        scope: `local` removes the share from each layer, `global` from all layers together.
        operators: the operators to prune, by name.
        finetune_epochs: passes over the training rows after pruning; 0 measures pruning only.
            None takes 15 for built-in models, else 1.
        finetune_lr: its largest learning rate; None takes what suits the model and the epochs.
        calibration_rows: training rows for methods that look at data.

    The other settings are those of `WorkloadConfig`.
    """

    RANGES: ClassVar[Mapping[str, tuple[float, float]]] = {
        **WorkloadConfig.RANGES,
        "finetune_epochs": (0, 10_000),
        "finetune_lr": (1e-9, 10),
        "calibration_rows": (1, 10**9),
    }

    out: Path = Path("runs/sweep-prune")
    sparsity: str | float | tuple[float, ...] = "0.1:0.9:0.1"
    methods: tuple[str, ...] = ("l1-norm", "random")
    scope: Literal["local", "global"] = "local"
    operators: tuple[str, ...] = field(default_factory=_multiplied)
    finetune_epochs: int | None = None
    finetune_lr: float | None = None
    calibration_rows: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        convert(self.scope, Literal["local", "global"], "scope")
        check_operators(self.operators, weighted_operators())
        if not self.methods:
            raise ConfigError("methods: expected at least one.")
        for value in self.shares():
            if not 0 <= value < 1:
                raise ConfigError(f"sparsity: got {value}, expected 0 to below 1.")
        for method in self.methods:
            parse(PruneConfig, {**self.pass_args((method, 0.5)), "batches": ()}, "chop sweep prune")

    def shares(self) -> tuple[float, ...]:
        """The sparsities of the sweep."""
        return tuple(map(float, spread(self.sparsity, "sparsity")))

    def pass_args(self, setting: Setting) -> dict[str, Any]:
        """What `prune_transform_pass` takes, data aside."""
        method, share = setting
        weight = {"method": method, "sparsity": share, "scope": self.scope, "seed": self.seed}
        return {"weight": weight, "include": self.operators}


def prune_sweep(config: PruneSweepConfig, workload: Workload | None = None) -> list[dict[str, Any]]:
    """Measures every method and sparsity after pruning, and fine-tuned after that.

    Writes into `config.out`: `points.jsonl` (each point as it is finished; run again, the sweep
    goes on from there), `table.csv`, `table.md`, `accuracy.svg` and `.png` (named by the metric).

    Args:
        config: the settings.
        subject: a trained model and rows of your own, see `Workload.of`; default, what `config`
            names.
    Returns: one mapping per method and sparsity: `method`, `sparsity` (asked), `actual sparsity`
        of the chosen layers after everything, `float`, `pruned` and `fine-tuned` (accuracies from
        0 to 1, or what the task's metric is).
    Raises:
        ConfigError: settings that do not fit together.
        UnavailableError: the model or the data set is not there.
    """
    workload = workload_for(config, workload)
    with runs.start("sweep prune", settings_with(config, workload), config.out) as run:
        run.rows = rows = _sweep(config, workload)
    return rows


def _sweep(config: PruneSweepConfig, workload: Workload) -> list[dict[str, Any]]:
    _check_methods(config, workload)
    metric = workload.task.metric
    settings = list(dict.fromkeys(itertools.product(config.methods, config.shares())))
    points = _experiment(config, workload).points(workload, settings)
    title = f"{workload.name} on {workload.dataset}"
    journal = Journal(config.out / "points.jsonl")
    results = measure_all(title, list(points.values()), journal, metric)
    measured = dict(zip(points, results, strict=True))
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
    hidden = sum(int((layer.effective("weight") == 0).sum()) for layer in layers)
    return hidden / max(1, sum(layer.weight.numel() for layer in layers))


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
