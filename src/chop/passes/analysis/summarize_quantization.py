"""Quantization summary: operators by format, and the weight error of each layer."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.base.files import write_csv
from chop.base.tables import print_table
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.parameters import parameter_bits
from chop.passes.base import graph_pass
from chop.quantization.summary import LayerRow, OperatorRow, layer_rows, operator_rows, poor_fit
from chop.quantization.unreached import unreached_matrices


class PoorFitWarning(UserWarning):
    """Warning that most weights of a layer round to zero or saturate."""


@dataclass(frozen=True)
class SummaryConfig:
    """Settings of `summarize_quantization_analysis_pass`.

    Attributes:
        save_dir: folder for `operators.csv` and `layers.csv`; default, no files.
        original_graph: graph before quantization, for `bits_before`.
        silent: suppresses the tables, but not warnings.
    """

    save_dir: Path | None = None
    original_graph: MaseGraph | None = None
    silent: bool = False


@graph_pass(config=SummaryConfig, requires=("add_common_metadata_analysis_pass",))
def summarize_quantization_analysis_pass(mg: MaseGraph, config: SummaryConfig) -> dict[str, Any]:
    """Summarizes quantized operators and their formats, and the weight errors of layers.

    Warns (`PoorFitWarning`) if most weights of a layer round to zero or saturate, since such a
    model answers by chance.

    Returns:
        operators: one dict per operator and formats, see `OperatorRow`.
        layers: one dict per quantized layer, see `LayerRow`.
        unreached: one dict per module with matrices that cannot have a format, see
            `chop.ir.unreached.Unreached`.
        bits_before: average bits per parameter before.
        bits_after: average bits per parameter after.

    Raises:
        ConfigError: if `original_graph` is of another model.
    """
    if config.original_graph is not None:
        _check_original(config.original_graph, mg)
    operators, layers = operator_rows(mg), layer_rows(mg)
    lost = poor_fit(mg, layers)
    if lost:
        warnings.warn(lost, PoorFitWarning, stacklevel=3)
    unreached = [dataclasses.asdict(one) for one in unreached_matrices(mg)]
    if not config.silent:
        _print(operators, layers)
        if unreached:
            print_table("Weights that cannot have a format", unreached)
    if config.save_dir is not None:
        for name, kind, rows in (
            ("operators", OperatorRow, operators),
            ("layers", LayerRow, layers),
        ):
            columns = [field.name for field in dataclasses.fields(kind)]
            write_csv(config.save_dir / f"{name}.csv", columns, map(dataclasses.astuple, rows))
    return {
        "operators": [dataclasses.asdict(row) for row in operators],
        "layers": [dataclasses.asdict(row) for row in layers],
        "unreached": unreached,
        "bits_before": _average(config.original_graph) if config.original_graph else None,
        "bits_after": _average(mg),
    }


def _check_original(original: MaseGraph, mg: MaseGraph) -> None:
    """Raises ConfigError if two graphs have no layer in common."""
    if original.modules.keys() & mg.modules.keys() <= {""} < mg.modules.keys():
        raise ConfigError(
            "summarize_quantization_analysis_pass.original_graph: expected the graph before "
            f"quantization, got one without any layer of this graph, {original}."
        )


def _average(mg: MaseGraph) -> float:
    bits, count = parameter_bits(mg)
    return bits / max(count, 1)


def _print(operators: list[OperatorRow], layers: list[LayerRow]) -> None:
    print_table("Quantization", [dataclasses.asdict(row) for row in operators])
    shares = ("share_rounded_to_zero", "share_saturated")
    rows = [dataclasses.asdict(row) for row in layers]
    percent = [{**row, **{name: f"{row[name]:.1%}" for name in shares}} for row in rows]
    print_table("Weights", percent)
