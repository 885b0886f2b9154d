"""Summary of a quantized graph: formats per operator, and the fit of each layer's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, fx

from chop.formats import Integer, NumberFormat, QuantSpec, format_string
from chop.ir.annotate import operand_formats
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.parameters import StoredParameter, masked_weights, stored_parameters
from chop.nn.packed.encoding import parts_of_rows
from chop.nn.quantized import QuantizedOperator

LARGE_SHARE = 0.5
PART = 2**18
"""Elements of a weight at a time, of which the comparison makes some ten copies."""


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
    """How the weights of one layer fit their format; shares are of its non-zero weights.

    `weight_error` is |Q(W) - W|^2 / |W|^2, what rounding changes.
    """

    layer: str
    format: str
    weights: int
    share_rounded_to_zero: float
    share_saturated: float
    weight_error: float


def operator_rows(mg: MaseGraph) -> list[OperatorRow]:
    """The quantizable operators of a graph, counted by name and formats."""
    groups: dict[tuple[str, str], list[fx.Node]] = {}
    for node in mg.nodes:
        operator = mg.operator(node)
        results = node_metadata(node).common.results.values()
        module = mg.get_module(node)
        is_listed = operator.is_quantizable or isinstance(module, QuantizedOperator)
        if is_listed and all(info.is_floating for info in results):
            spec = module.spec if isinstance(module, QuantizedOperator) else QuantSpec()
            groups.setdefault((operator.name, describe(spec)), []).append(node)
    rows = []
    for (name, text), nodes in sorted(groups.items()):
        widths = [_mean_bits(mg, node) for node in nodes]
        before, after = (sum(column) / len(nodes) for column in zip(*widths, strict=True))
        rows.append(OperatorRow(name, len(nodes), text, before, after))
    return rows


def describe(spec: QuantSpec) -> str:
    """The formats of a spec as one line; empty when all is float."""
    chosen = {operand: fmt.label for operand, fmt in spec.items() if not fmt.is_identity}
    labels = set(chosen.values())
    if len(labels) == 1:
        return labels.pop()
    return ", ".join(f"{operand} {label}" for operand, label in chosen.items())


def _mean_bits(mg: MaseGraph, node: fx.Node) -> tuple[float, float]:
    """Mean width of a node's operands, the result aside: of their dtypes, and of their formats."""
    widths = [
        (float(bits), bits if fmt.is_identity else fmt.bits())
        for _, _, bits, fmt in operand_formats(mg, node)
    ]
    count = max(len(widths), 1)
    return sum(exact for exact, _ in widths) / count, sum(bits for _, bits in widths) / count


def layer_rows(mg: MaseGraph, exact: Mapping[str, Tensor] | None = None) -> list[LayerRow]:
    """The layers whose weights are quantized, in the order of the model's parameters.

    Packed ones are left out: what rounding took is gone.

    Args:
        mg: the quantized graph.
        exact: float weights by name, where those of the graph are rounded already.
    """
    before = exact or {}
    weights = (parameter for parameter in stored_parameters(mg) if parameter.operand == "weight")
    stored = (parameter for parameter in weights if parameter.packed is None)
    masked = masked_weights(mg)
    return [
        _layer_row(parameter, masked.get(id(parameter.value)), before.get(parameter.name))
        for parameter in stored
        if not parameter.format.is_identity
    ]


def _layer_row(parameter: StoredParameter, masked: Tensor | None, exact: Tensor | None) -> LayerRow:
    weight, number_format = parameter.value.detach(), parameter.format
    before = weight if exact is None else exact.detach()
    if masked is not None:
        weight, before = weight.masked_fill(masked, 0), before.masked_fill(masked, 0)
    alive = vanished = saturated = 0
    changed = total = 0.0
    size = parts_of_rows(number_format, weight, PART)
    for given, rows in zip(weight.split(size), before.split(size), strict=True):
        is_alive = rows != 0
        alive += int(is_alive.sum())
        rounded = number_format(given)
        vanished += int(((rounded == 0) & is_alive).sum())
        changed += float((rounded - rows).double().square().sum())
        total += float(rows.double().square().sum())
        saturated += int(number_format.saturates(rows).sum())
    layer, count = parameter.name.removesuffix(".weight"), max(alive, 1)
    shares = vanished / count, saturated / count
    error = changed / total if total else 0.0
    return LayerRow(layer, number_format.label, weight.numel(), *shares, error)


def format_rows(mg: MaseGraph) -> list[dict[str, str]]:
    """The format of every operand of each quantized operator.

    Returns: rows of `layer` (its path), and by operand what `parse_format_string` reads; operands
        that stay float are left out.
    """
    found = {}
    for node in mg.nodes:
        module = mg.get_module(node)
        if isinstance(module, QuantizedOperator) and not module.spec.is_float:
            chosen = ((name, fmt) for name, fmt in module.spec.items() if not fmt.is_identity)
            found[str(node.target)] = {
                name: format_string(fmt) if isinstance(fmt, NumberFormat) else fmt.label
                for name, fmt in chosen
            }
    return [{"layer": path, **formats} for path, formats in found.items()]


def poor_fit(mg: MaseGraph, layers: Sequence[LayerRow]) -> str | None:
    """One sentence on the layers whose weights their format fits badly; None where none are.

    Args:
        mg: the graph.
        layers: its `layer_rows`.
    """
    poor = [
        row
        for row in layers
        if row.share_rounded_to_zero > LARGE_SHARE or row.share_saturated > LARGE_SHARE / 10
    ]
    if not poor:
        return None
    worst = max(poor, key=lambda row: max(row.share_rounded_to_zero, row.share_saturated))
    way_out = "frac_width 'auto'" if _derives_another(mg, worst.layer) else "more bits"
    fit = "layers fits badly" if len(poor) == 1 else "layers fit badly, worst of all"
    return (
        f"{len(poor)} of {len(layers)} {fit} '{worst.layer}' in {worst.format}: "
        f"{worst.share_rounded_to_zero:.0%} of its weights become zero, "
        f"{worst.share_saturated:.0%} are clipped. Try {way_out}."
    )


def _derives_another(mg: MaseGraph, layer: str) -> bool:
    """Whether the weights of a layer derive another fraction than its integers have."""
    parameters = (p for p in stored_parameters(mg) if p.operand == "weight")
    found = next(p for p in parameters if p.name.removesuffix(".weight") == layer)
    kept = found.format
    return (
        isinstance(kept, Integer) and replace(kept, frac_width="auto").fitted(found.value) != kept
    )
