"""Fixed-point rounding in sweeps: after training (PTQ) and in training (QAT)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from chop.actions.compress.ptq import quantize_after_training
from chop.actions.idle_training import assume_rate
from chop.actions.sweep.experiment import FLOAT, Experiment, Results
from chop.actions.sweep.settings import QuantizeSweepConfig
from chop.formats import Integer
from chop.ir.graph import MaseGraph
from chop.passes import calculate_avg_bits_mg_analysis_pass
from chop.quantization.named_operators import relevant_operators
from chop.report.charts.accuracy import Curve
from chop.report.measured import compute_intervals, get_seconds, list_points, over_seeds
from chop.workloads.workload import Workload

Setting = tuple[int, int | str]
"""Width, and fraction width or the rule that calibrates it."""
ResultsBySetting = Mapping[tuple[str, Setting | None], Sequence[Results]]
PTQ, QAT = STAGES = ("PTQ", "QAT")
VALIDATION = "validation"
"""Name of the metric on validation rows in the results of a point."""
UNPRINTED = tuple(f"{stage} {VALIDATION}" for stage in STAGES)
"""Columns of the validation metric, which other jobs choose by."""


def build_rounding(config: QuantizeSweepConfig, workload: Workload) -> Experiment[Setting]:
    """Returns the experiment that rounds the chosen operators; only training is random."""
    operators = relevant_operators(workload.model, config.operators)
    depends = {"operators": operators, "calibration_rows": config.calibration_rows}

    training = workload.tuning(config.qat_epochs, config.qat_lr, config)
    assume_rate(training, config.qat_lr, "qat")

    def rounded(mg: MaseGraph, setting: Setting, seed: int) -> MaseGraph:
        number_format = Integer(*setting)  # type: ignore[arg-type]
        return quantize_after_training(
            mg, number_format, config.operators, workload, config.calibration_rows
        )

    def described(mg: MaseGraph) -> dict[str, float]:
        bits = {"bits": calculate_avg_bits_mg_analysis_pass(mg)[1]["w_avg_bit"]}
        if workload.validation is None or not workload.chooses_by_rows:
            return bits
        return {**bits, VALIDATION: workload.evaluate(mg.model, workload.validation)}

    return Experiment(
        stages=STAGES,
        change=rounded,
        draws=lambda setting: False,
        describe=described,
        described=lambda setting: ("bits",),
        get_settings=lambda setting, seed: {**depends, "format": setting},
        label=lambda setting: f"{setting[0]}.{setting[1]}",
        training=training,
        seeds=tuple(range(config.seed, config.seed + config.seeds)),
    )


def get_row(measured: ResultsBySetting, setting: Setting, workload: Workload) -> dict[str, Any]:
    """Returns the row of a setting: bits, metric of each stage, range over seeds, seconds.

    With validation rows, the columns of `UNPRINTED` have the metric on them; None in points of
    earlier versions.
    """
    stages = {name: measured[name, setting] for name in STAGES if (name, setting) in measured}
    trained = {name: results for name, results in stages.items() if name == QAT}
    metric = workload.task.metric.name
    return {
        "bits": measured[PTQ, setting][0]["bits"],
        FLOAT: measured[FLOAT, None][0][metric],
        **over_seeds({PTQ: stages[PTQ]}, metric, ranged=False),
        **over_seeds(trained, metric, ranged=len(stages.get(QAT, ())) > 1),
        **compute_intervals({FLOAT: measured[FLOAT, None], PTQ: stages[PTQ]}),
        **({} if len(stages.get(QAT, ())) > 1 else compute_intervals(trained)),
        "seconds": get_seconds(stages),
        **(_get_validation(stages) if workload.chooses_by_rows else {}),
    }


def _get_validation(stages: Mapping[str, Sequence[Results]]) -> dict[str, float | None]:
    columns = {}
    for stage, results in stages.items():
        values = [result.get(VALIDATION) for result in results]
        known = [value for value in values if value is not None]
        columns[UNPRINTED[STAGES.index(stage)]] = fmean(known) if known == values else None
    return columns


def stages_in(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the stages that rows have."""
    return [name for name in STAGES if name in rows[0]]


def build_curve(rows: Sequence[Mapping[str, Any]], x: str, stage: str) -> Curve:
    """Returns the curve of a stage over a column of the rows."""
    points, ranges = list_points(rows, x, stage)
    return Curve(stage, points, ranges=ranges)
