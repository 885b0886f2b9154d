"""Pruning sweep: accuracy against sparsity of weights and activations, with fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chop import passes
from chop.actions.idle_training import assume_rate
from chop.actions.job import Job, Output, load_checked, run_job
from chop.actions.next_steps import steps_after_pruning
from chop.actions.starting_run import config_of_run
from chop.actions.sweep.experiment import FLOAT, JOURNAL, START, Experiment, Results, Sweep
from chop.actions.sweep.settings import PruneSetting, PruneSweepConfig
from chop.actions.sweep.start import find_start
from chop.actions.sweep.verdict import note_weak_training, with_verdict
from chop.errors import ConfigError
from chop.ir.batches import select_inputs
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantizedOperator
from chop.nn.sparsity import SCORES, PruneActivation
from chop.pruning.sparsity import ZeroCount, layer_zeros, total
from chop.quantization.named_operators import present_operators, relevant_operators
from chop.report.charts.accuracy import Curve, accuracy_charts
from chop.report.measured import (
    TIMES,
    MeasuredTable,
    compute_intervals,
    get_seconds,
    list_points,
    over_seeds,
    report_of_tables,
)
from chop.report.report import Report, Writer, figure_files
from chop.runs.interrupt import describe_saved_points
from chop.train import calibration_batches
from chop.workloads.workload import Workload

STAGES = ("pruned", "fine-tuned")
SPARSITY, INPUT_SPARSITY = "sparsity", "input sparsity"
"""Measured shares of zeros: in the weights of pruned layers, and in their inputs."""
POINT = ("pruned part", "activation method", "activation sparsity")
"""Columns of sweeps that prune activations."""
COUNTED_ROWS = 32
"""Number of training rows for counting zeros in activations."""
XLABELS = {
    "weights": "sparsity",
    "activations": "sparsity of activations",
    "both": "sparsity of weights",
}


def prune_sweep(config: PruneSweepConfig, workload: Workload | None = None) -> list[dict[str, Any]]:
    """Measures every method and sparsity after pruning, and after fine-tuning.

    Writes into `config.out`: `points.jsonl` (finished points, from which the same sweep resumes),
    `table.csv`, `table.md`, `accuracy.svg` and `.png` (named by the metric; with pruned activations
    also `accuracy-activations` and `accuracy-both`).

    Args:
        config: settings of the sweep.
        workload: your own trained model and rows, see `Workload.of`. Default: the model and
            data that `config` names.
    Returns: one mapping per point: `method`, `sparsity` (requested), `actual sparsity` of the
        chosen layers' weights in the end, `float`, `start` (with `config.start_from`), `pruned` and
        `fine-tuned`, and `seconds` of the point. Scores are accuracies from 0 to 1, or the task's
        metric, as means with the range over several seeds, or with the bounds of the 95 % interval,
        `pruned (95 % low)` ... With pruned activations also `weights` and `inputs` (in words),
        `pruned part`, `activation method`, `activation sparsity` (requested) and `zero inputs`
        (measured).
    Raises:
        ConfigError: if settings do not fit together.
        UnavailableError: if the model or the data set is missing.
        CheckpointError: if `config.start_from` has no model, or one of another model or other rows.
    """
    config = config_of_run(config, workload)
    return run_job(PRUNE, config, workload)


def _sweep(
    config: PruneSweepConfig, workload: Workload, output: Output
) -> Report[list[dict[str, Any]]]:
    _check_methods(config, workload)
    metric, settings = workload.task.metric, config.settings()
    results = Sweep(_experiment(config, workload), workload).measure(settings, config.out)
    rows = [_row(config, results, setting, metric.name) for setting in settings]
    note_weak_training(rows, STAGES, metric, "finetune")
    columns = dict.fromkeys((FLOAT, START, *STAGES), metric)
    heading = f"{workload.title}: {metric.name} against sparsity"
    note = ", ".join(f"{name} {metric.format_value(rows[0][name])}" for name in _bases(rows))
    note = workload.about_test if config.start_from is None else f"{note}. {workload.about_test}"
    table = MeasuredTable(heading, rows, columns, note, _unprinted(config), TIMES)
    points, figures = list(zip(settings, rows, strict=True)), dict[str, Writer]()
    for part in config.measured_parts:
        figures |= _figures(config, workload, part, points)
    report = report_of_tables({"table": table}, rows, figures)
    stages = [stage for stage in STAGES if stage in rows[0]]
    report = with_verdict(
        report, metric, stages, "sparsity", "greatest", "method", workload.dataset
    )
    steps = steps_after_pruning(config, workload.name, config.start_from)
    return replace(report, steps=steps)


PRUNE = Job(
    "sweep prune", _sweep, load_checked, lambda config: describe_saved_points(config.out / JOURNAL)
)


def _bases(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the stages with the same number in all rows."""
    return [name for name in (FLOAT, START) if name in rows[0]]


def _unprinted(config: PruneSweepConfig) -> tuple[str, ...]:
    """Returns columns that are only in the table's file, since others or the note repeat them."""
    unprinted = (*POINT, "method", "sparsity") if config.inputs_are_pruned else ()
    return unprinted if config.start_from is None else (*unprinted, FLOAT, START)


def _experiment(config: PruneSweepConfig, workload: Workload) -> Experiment[PruneSetting]:
    rows = config.calibration_rows
    training = workload.tuning(config.finetune_epochs, config.finetune_lr, config)
    assume_rate(training, config.finetune_lr, "finetune")

    def pruned(mg: MaseGraph, setting: PruneSetting, seed: int) -> MaseGraph:
        batches = calibration_batches(mg.model, workload.train, rows=rows, with_labels=True)
        include = present_operators(mg, config.operators)
        pass_args = {**config.pass_args(setting, seed), "include": include, "batches": batches}
        return passes.prune_transform_pass(mg, pass_args)[0]

    return Experiment(
        stages=STAGES,
        change=pruned,
        draws=lambda setting: setting.draws,
        describe=lambda mg: _sparsities(mg, workload),
        described=lambda setting: (SPARSITY, *[INPUT_SPARSITY] * (setting.activation is not None)),
        get_settings=lambda setting, seed: {
            **config.pass_args(setting, seed),
            "include": relevant_operators(workload.model, config.operators),
            "calibration_rows": rows,
        },
        label=_label,
        training=training,
        seeds=tuple(range(config.seed, config.seed + config.seeds)),
        start=find_start(config, workload),
    )


def _words(pruned: tuple[str, float] | None) -> str | None:
    return None if pruned is None else f"{pruned[0]} {pruned[1]:g}"


def _label(setting: PruneSetting) -> str:
    inputs = None if setting.activation is None else f"inputs {_words(setting.activation)}"
    return " and ".join(filter(None, (_words(setting.weight), inputs)))


def _sparsities(mg: MaseGraph, workload: Workload) -> dict[str, float]:
    """Returns the share of pruned weights in pruned layers, and of zeros in their inputs."""
    layers = [m for m in mg.model.modules() if isinstance(m, QuantizedOperator) and m.is_pruned]
    hidden = total(ZeroCount.of(layer.effective("weight")) for layer in layers)
    shares = {SPARSITY: hidden.share}
    pruners = {node for node in mg.nodes if isinstance(mg.get_module(node), PruneActivation)}
    if pruners:
        batches = calibration_batches(mg.model, workload.train, rows=COUNTED_ROWS)
        counts = layer_zeros(mg, select_inputs(mg, batches, "chop sweep prune"))
        shares[INPUT_SPARSITY] = total(
            inputs
            for layer, (_, inputs) in counts.items()
            if any(node.all_input_nodes[0] in pruners for node in layer.nodes)
        ).share
    return shares


def _check_methods(config: PruneSweepConfig, workload: Workload) -> None:
    """Raises ConfigError if a method needs a loss that pruning does not support."""
    needy = [name for name in config.methods if SCORES[name].needs == "gradients"]
    if needy and workload.task.name != "classification":
        others = (name for name, score in SCORES.items() if score.needs in (None, "inputs"))
        raise ConfigError(
            f"methods: {', '.join(needy)} needs a classifier, and the task is "
            f"'{workload.task.name}'. Choose among {', '.join(others)}."
        )


def _row(
    config: PruneSweepConfig,
    results: Mapping[tuple[str, PruneSetting | None], Sequence[Results]],
    setting: PruneSetting,
    metric: str,
) -> dict[str, Any]:
    stages = {name: results[name, setting] for name in STAGES if (name, setting) in results}
    last = list(stages.values())[-1]
    method, share = setting.weight or (None, None)
    row = {"method": method, "sparsity": share, "actual sparsity": None}
    if setting.weight is not None:
        row |= over_seeds({"actual sparsity": last}, SPARSITY, ranged=False)
    if config.inputs_are_pruned:
        row = {**dict(zip(("weights", "inputs"), map(_words, setting), strict=True)), **row}
        row |= dict(zip(POINT, (setting.part, *(setting.activation or (None, None))), strict=True))
        row["zero inputs"] = None
        if setting.activation is not None:
            row |= over_seeds({"zero inputs": last}, INPUT_SPARSITY, ranged=False)
    bases = [name for name in (FLOAT, START) if (name, None) in results]
    return {
        **row,
        **{name: results[name, None][0][metric] for name in bases},
        **over_seeds(stages, metric, ranged=config.seeds > 1),
        **compute_intervals({name: results[name, None] for name in bases}),
        **({} if config.seeds > 1 else compute_intervals(stages)),
        "seconds": get_seconds(stages),
    }


def _figures(
    config: PruneSweepConfig,
    workload: Workload,
    part: str,
    points: Sequence[tuple[PruneSetting, Mapping[str, Any]]],
) -> dict[str, Writer]:
    metric = workload.task.metric
    family_points = [(setting, row) for setting, row in points if setting.part == part]
    first = family_points[0][1]
    paired = part == "both" and config.activation_sparsity is None
    return figure_files(
        metric.name if part == "weights" else f"{metric.name}-{part}",
        accuracy_charts,
        _curves(config, family_points),
        {**{name: first[name] for name in _bases([first])}, **workload.baselines},
        metric=metric,
        xlabel="sparsity of weights and of activations" if paired else XLABELS[part],
        title=f"{workload.title}: {metric.name} against sparsity",
        ticks=sorted({setting.sparsity for setting, _ in family_points}),
    )


def _curves(
    config: PruneSweepConfig, points: Sequence[tuple[PruneSetting, Mapping[str, Any]]]
) -> list[Curve]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for setting, row in points:
        groups.setdefault(_family(config, setting), []).append(row)
    return [
        _curve(family, rows, stage)
        for family, rows in groups.items()
        for stage in STAGES
        if stage in rows[0]
    ]


def _curve(family: str, rows: Sequence[Mapping[str, Any]], stage: str) -> Curve:
    x = "activation sparsity" if rows[0]["method"] is None else "sparsity"
    points, ranges = list_points(rows, x, stage)
    return Curve(f"{family}, {stage}", points, family, stage == STAGES[0], ranges)


def _family(config: PruneSweepConfig, setting: PruneSetting) -> str:
    """Returns the common label of a pair of curves."""
    if setting.weight is None or setting.activation is None:
        return (setting.weight or setting.activation or ("",))[0]
    share = "" if config.activation_sparsity is None else f" {setting.activation[1]:g}"
    return f"weights {setting.weight[0]}, inputs {setting.activation[0]}{share}"
