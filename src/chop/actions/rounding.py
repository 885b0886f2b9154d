"""Quantisation as the jobs do it: one format for the chosen operators."""

from __future__ import annotations

from collections.abc import Sequence

from chop import passes
from chop.actions.subject import Subject
from chop.errors import ConfigError, did_you_mean
from chop.formats import NumberFormat, QuantSpec
from chop.ir.graph import MaseGraph
from chop.ir.ops import OPS
from chop.train import calibration_batches

QUANTIZED_OPERATORS = ("linear", "conv1d", "conv2d", "conv_transpose2d", "embedding")
QUANTIZABLE = tuple(row.name for row in OPS.values() if row.is_quantizable)
QUANTIZE_RANGES: dict[str, tuple[float, float]] = {
    "qat_epochs": (0, 10_000),
    "qat_lr": (1e-9, 10),
    "calibration_rows": (1, 10**9),
}


def check_operators(names: Sequence[str], choices: Sequence[str] = QUANTIZABLE) -> None:
    """Raises ConfigError where a name is not among the choices, or there is none."""
    for name in names:
        if name not in choices:
            raise ConfigError(f"operators: unknown '{name}': {did_you_mean(name, choices)}")
    if not names:
        raise ConfigError("operators: expected at least one.")


def present_operators(mg: MaseGraph, names: Sequence[str]) -> list[str]:
    """Those of `names` that the graph has.

    Raises:
        ConfigError: it has none of them.
    """
    present = {mg.operator(node).name for node in mg.nodes}
    found = [name for name in names if name in present]
    if not found:
        raise ConfigError(
            f"the model has none of the operators {', '.join(names)}; "
            f"it has: {', '.join(sorted(name for name in present if name in OPS))}."
        )
    return found


def quantize_after_training(
    mg: MaseGraph,
    number_format: NumberFormat,
    operators: Sequence[str],
    subject: Subject,
    calibration_rows: int,
) -> MaseGraph:
    """A graph with data, weights and biases of `operators` in one format.

    Args:
        mg: the float graph; it stays as it is.
        number_format: fractions that wait for data are calibrated on training rows.
        operators: those that the graph lacks are passed over.
        subject: gives the rows.
        calibration_rows: how many.
    Raises:
        ConfigError: the graph has none of the operators.
    """
    spec = {"config": QuantSpec.uniform(number_format)}
    rules = dict.fromkeys(present_operators(mg, operators), spec)
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", **rules})
    if not number_format.is_fitted:
        batches = calibration_batches(mg.model, subject.train, rows=calibration_rows)
        quantized, _ = passes.calibrate_transform_pass(
            quantized, {"batches": batches}, inplace=True
        )
    return quantized
