"""Quantisation as the jobs do it: one format for the chosen operators."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from chop import passes
from chop.actions.subject import Subject
from chop.errors import ConfigError, did_you_mean
from chop.formats import Integer, NumberFormat, QuantSpec, parse_format
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


def parse_spelling(text: str) -> NumberFormat:
    """A number format as people type it.

    Integers are `width.fraction`, as `8.4` or `4.auto`; any format is `name` or
    `name:field=value:field=value`.

    >>> parse_spelling("4.auto").label, parse_spelling("mxint:width=4").bits()
    ('integer 4.auto', 4.25)

    Raises:
        ConfigError: it is spelt differently, or a field is unknown or out of range.
    """
    if text[:1].isdigit():
        return _parse_integer(text)
    name, *fields = text.split(":")
    pairs = [field.partition("=") for field in fields]
    if not all(value for _, _, value in pairs):
        raise ConfigError(f"format '{text}': expected name:field=value, as mxint:width=4.")
    settings = {field: _parse_value(value) for field, _, value in pairs}
    return parse_format({"name": name, **settings}, f"format '{text}'")


def _parse_integer(text: str) -> Integer:
    width, _, fraction = text.partition(".")
    try:
        return Integer(int(width), "auto" if fraction == "auto" else int(fraction))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"format '{text}': expected width.fraction, as 8.4 or 4.auto, or a name, as mxint."
        ) from None


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


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
