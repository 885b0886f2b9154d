"""What quantisation did: per operator, and per layer how well the weights fit their grid."""

from __future__ import annotations

import csv
import dataclasses
import io
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, fx

from chop.files import write_text
from chop.formats import QuantSpec
from chop.ir.graph import MaseGraph, metadata_of
from chop.nn.quantized import QuantizedOperator
from chop.passes.analysis.calculate_avg_bits import parameter_bits
from chop.passes.base import graph_pass

LARGE_SHARE = 0.5


class PoorFitWarning(UserWarning):
    """Most weights of some layers round to zero, or many saturate."""


@dataclass(frozen=True)
class SummaryConfig:
    """Settings of `summarize_quantization_analysis_pass`.

    Attributes:
        save_dir: folder for `operators.csv` and `layers.csv`; None writes nothing.
        original_graph: the graph before quantisation, for the column of bits before.
        silent: prints no table; warnings stay.
    """

    save_dir: Path | None = None
    original_graph: MaseGraph | None = None
    silent: bool = False


@dataclass(frozen=True)
class OperatorRow:
    """One operator in one set of formats (`formats` is empty for those left float)."""

    operator: str
    count: int
    formats: str
    bits_before: float
    bits_after: float


@dataclass(frozen=True)
class LayerRow:
    """How the weights of one layer fit their format; shares are of its non-zero weights."""

    layer: str
    format: str
    weights: int
    share_rounded_to_zero: float
    share_saturated: float


@graph_pass(config=SummaryConfig, requires=("add_common_metadata_analysis_pass",))
def summarize_quantization_analysis_pass(mg: MaseGraph, config: SummaryConfig) -> dict[str, Any]:
    """Tables of what was quantised to what, and of the layers whose weights do not survive it.

    Warns (`PoorFitWarning`) where most weights of a layer round to zero or saturate: such a model
    answers by chance, which is better known before an evaluation than after.

    Returns: `{"operators": [row as dict], "layers": [row as dict], "bits_before": average bits per
        parameter, "bits_after": the same after}`.
    """
    operators, layers = operator_rows(mg), layer_rows(mg)
    _warn_of_poor_fit(layers)
    before = parameter_bits(config.original_graph) if config.original_graph else None
    after = parameter_bits(mg)
    if not config.silent:
        _print(operators, layers)
    if config.save_dir is not None:
        write_text(config.save_dir / "operators.csv", _csv(OperatorRow, operators))
        write_text(config.save_dir / "layers.csv", _csv(LayerRow, layers))
    return {
        "operators": [dataclasses.asdict(row) for row in operators],
        "layers": [dataclasses.asdict(row) for row in layers],
        "bits_before": before[0] / before[1] if before else 32.0,
        "bits_after": after[0] / max(after[1], 1),
    }


def operator_rows(mg: MaseGraph) -> list[OperatorRow]:
    """The quantisable operators of a graph, counted by name and formats."""
    groups: dict[tuple[str, str], list[fx.Node]] = {}
    for node in mg.nodes:
        operator = mg.operator(node)
        results = metadata_of(node).common.results.values()
        if operator.is_quantizable and all(info.is_floating for info in results):
            module = mg.module_of(node)
            spec = module.spec if isinstance(module, QuantizedOperator) else QuantSpec()
            groups.setdefault((operator.name, describe(spec)), []).append(node)
    rows = []
    for (name, text), nodes in sorted(groups.items()):
        widths = [_mean_bits(mg, node) for node in nodes]
        rows.append(OperatorRow(name, len(nodes), text, 32.0, sum(widths) / len(widths)))
    return rows


def describe(spec: QuantSpec) -> str:
    """The formats of a spec as one line; empty when all is float."""
    chosen = {operand: fmt.label for operand, fmt in spec.items() if not fmt.is_identity}
    labels = set(chosen.values())
    if len(labels) == 1:
        return labels.pop()
    return ", ".join(f"{operand} {label}" for operand, label in chosen.items())


def _mean_bits(mg: MaseGraph, node: fx.Node) -> float:
    """Mean width of the operands that the operator has, the result aside."""
    module = mg.module_of(node)
    if not isinstance(module, QuantizedOperator):
        return 32.0
    widths = [getattr(module.spec, operand).bits() for operand in module.operands]
    return sum(widths) / len(widths)


def layer_rows(mg: MaseGraph) -> list[LayerRow]:
    """The layers whose weights are quantised, in the order of the module tree."""
    modules = [
        (name, module)
        for name, module in mg.model.named_modules()
        if isinstance(module, QuantizedOperator)
    ]
    return [row for name, module in modules if (row := _layer_row(name, module))]


def _layer_row(name: str, module: QuantizedOperator) -> LayerRow | None:
    weight, number_format = getattr(module, "weight", None), module.spec.weight
    if not isinstance(weight, Tensor) or number_format.is_identity:
        return None
    weight = weight.detach()
    alive = weight != 0
    count = max(int(alive.sum()), 1)
    vanished = ((number_format.round(weight) == 0) & alive).sum().item() / count
    saturated = number_format.saturates(weight).sum().item() / count
    return LayerRow(name, number_format.label, weight.numel(), vanished, saturated)


def _warn_of_poor_fit(layers: Iterable[LayerRow]) -> None:
    poor = [
        row
        for row in layers
        if row.share_rounded_to_zero > LARGE_SHARE or row.share_saturated > LARGE_SHARE / 10
    ]
    if not poor:
        return
    worst = max(poor, key=lambda row: max(row.share_rounded_to_zero, row.share_saturated))
    warnings.warn(
        f"{len(poor)} layers lose most of their weights to their format; the worst is "
        f"'{worst.layer}' in {worst.format}: {worst.share_rounded_to_zero:.0%} of its weights "
        f"round to zero, {worst.share_saturated:.0%} saturate. Try frac_width 'auto'.",
        PoorFitWarning,
        stacklevel=4,
    )


def _print(operators: list[OperatorRow], layers: list[LayerRow]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("operator", "count", "formats", "bits before", "bits after", title="Quantisation")
    for row in operators:
        bits = f"{row.bits_before:.4g}", f"{row.bits_after:.4g}"
        table.add_row(row.operator, str(row.count), row.formats or "-", *bits)
    Console().print(table)
    table = Table(title="Weights")
    for column in ("layer", "format", "weights", "round to zero", "saturate"):
        table.add_column(column, overflow="fold")
    for layer in layers:
        shares = f"{layer.share_rounded_to_zero:.1%}", f"{layer.share_saturated:.1%}"
        table.add_row(layer.layer, layer.format, f"{layer.weights:,}", *shares)
    if layers:
        Console().print(table)


def _csv(kind: type[Any], rows: Iterable[Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in dataclasses.fields(kind))
    writer.writerows(dataclasses.astuple(row) for row in rows)
    return text.getvalue()
