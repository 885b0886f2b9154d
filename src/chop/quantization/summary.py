"""Summary of a quantized graph: formats per operator, and weight errors per layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, fx

from chop.base.notices import warn_each_time
from chop.formats import Integer, NumberFormat, QuantSpec, format_string
from chop.ir.annotate import operand_formats
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.parameters import StoredParameter, masked_weights, stored_parameters
from chop.nn.packed.encoding import parts_of_rows
from chop.nn.quantized import QuantizedOperator
from chop.quantization.operators import follows_data

LARGE_SHARE = 0.5
MOST_CLIPPED = 0.25
"""Share of clipped weights beyond which a format is a mistake."""
MOST_LOST = 0.99
"""Share of weights that are clipped or become zero beyond which a format is a mistake."""
PART = 2**18
"""Number of weight elements compared at once, which needs about ten copies."""


@dataclass(frozen=True)
class OperatorRow:
    """Operator count with one set of formats; `formats` is empty for float ones."""

    operator: str
    count: int
    formats: str
    bits_before: float
    bits_after: float


@dataclass(frozen=True)
class LayerRow:
    """Fit of a layer's weights to their format; shares are of its non-zero weights.

    `weight_error` is |Q(W) - W|^2 / |W|^2, the inverse of the signal-to-quantization-noise ratio
    (SQNR).
    """

    layer: str
    format: str
    weights: int
    share_rounded_to_zero: float
    share_saturated: float
    weight_error: float


def operator_rows(mg: MaseGraph) -> list[OperatorRow]:
    """Returns the quantizable operators of a graph, counted by name and formats."""
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
    """Describes the formats of a spec in one line; empty if all operands are float."""
    chosen = {operand: fmt.label for operand, fmt in spec.items() if not fmt.is_identity}
    labels = set(chosen.values())
    if len(labels) == 1:
        return labels.pop()
    return ", ".join(f"{operand} {label}" for operand, label in chosen.items())


def _mean_bits(mg: MaseGraph, node: fx.Node) -> tuple[float, float]:
    """Returns the mean bits of a node's operands without its result, by dtype and by format."""
    widths = [
        (float(bits), bits if fmt.is_identity else fmt.bits())
        for _, _, bits, fmt in operand_formats(mg, node)
    ]
    count = max(len(widths), 1)
    return sum(exact for exact, _ in widths) / count, sum(bits for _, bits in widths) / count


def layer_rows(
    mg: MaseGraph,
    exact: Mapping[str, Tensor] | None = None,
    only: Callable[[StoredParameter], bool] = lambda parameter: True,
) -> list[LayerRow]:
    """Returns the layers with quantized weights, in the order of the model's parameters.

    Packed layers are omitted, because their original weights are lost.

    Args:
        mg: the quantized graph.
        exact: float weights by name, if those of the graph are already rounded.
        only: returns true for the weights to include.
    """
    before = exact or {}
    weights = (parameter for parameter in stored_parameters(mg) if parameter.operand == "weight")
    stored = (parameter for parameter in weights if parameter.packed is None)
    masked = masked_weights(mg)
    return [
        _layer_row(parameter, masked.get(id(parameter.value)), before.get(parameter.name))
        for parameter in stored
        if not parameter.format.is_identity and only(parameter)
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
    """Returns the format of each operand of each quantized operator.

    Returns: rows with `layer` (its path), and by operand a string for `parse_format_string`; float
    operands are omitted.
    """
    rows = {}
    for node in mg.nodes:
        module = mg.get_module(node)
        if isinstance(module, QuantizedOperator) and not module.spec.is_float:
            chosen = ((name, fmt) for name, fmt in module.spec.items() if not fmt.is_identity)
            rows[str(node.target)] = {
                name: format_string(fmt) if isinstance(fmt, NumberFormat) else fmt.label
                for name, fmt in chosen
            }
    return [{"layer": path, **formats} for path, formats in rows.items()]


def poor_fit(mg: MaseGraph, layers: Sequence[LayerRow]) -> str | None:
    """Describes layers whose weights fit their format badly in one sentence, or returns None.

    Args:
        mg: the graph.
        layers: result of `layer_rows`.
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
    fit = "fits" if len(poor) == 1 else "fit"
    unit = "layer" if len(layers) == 1 else "layers"
    return (
        f"{len(poor)} of {len(layers)} {unit} {fit} badly. In '{worst.layer}' ({worst.format}) "
        f"{worst.share_rounded_to_zero:.0%} of the weights become zero and "
        f"{worst.share_saturated:.0%} are clipped. Try {way_out}."
    )


def _share_lost(row: LayerRow) -> float:
    return row.share_rounded_to_zero + row.share_saturated


def clips(row: LayerRow) -> bool:
    """Returns true if a format clips so many weights of a layer that it is a mistake."""
    return row.share_saturated > MOST_CLIPPED


def vanishes(row: LayerRow) -> bool:
    """Returns true if a format clips few weights of a layer, but represents almost none."""
    return not clips(row) and _share_lost(row) > MOST_LOST


def warn_about_lost_weights(
    mg: MaseGraph, specs: Mapping[str, QuantSpec], is_lost: Callable[[LayerRow], bool]
) -> None:
    """Warns of layers whose weights a format with a fixed step loses.

    Args:
        mg: the quantized graph.
        specs: formats by path of a layer, before scales are derived from the weights.
        is_lost: `clips` or `vanishes`.
    """
    fixed = {f"{path}.weight" for path, x in specs.items() if not follows_data(x, "weight")}
    rows = layer_rows(mg, only=lambda x: x.name in fixed and not x.value.is_meta) if fixed else []
    lost = [row for row in rows if is_lost(row)]
    if lost:
        worst = max(lost, key=_share_lost)
        unit = "layer loses" if len(lost) == 1 else "layers lose"
        warn_each_time(
            f"{len(lost)} {unit} weights to the format. In '{worst.layer}' ({worst.format}) "
            f"{worst.share_rounded_to_zero:.0%} of the weights become zero and "
            f"{worst.share_saturated:.0%} are clipped. Try a format with a derived scale, such as "
            "'8.auto'.",
            UserWarning,
        )


def _derives_another(mg: MaseGraph, layer: str) -> bool:
    """Returns true if a layer's weights would derive another fraction width than it has."""
    parameters = (p for p in stored_parameters(mg) if p.operand == "weight")
    parameter = next(p for p in parameters if p.name.removesuffix(".weight") == layer)
    current = parameter.format
    return (
        isinstance(current, Integer)
        and replace(current, frac_width="auto").fitted(parameter.value) != current
    )
