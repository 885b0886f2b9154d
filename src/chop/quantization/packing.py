"""Bit packing of a graph's layers: codes and scales in place of quantized parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from chop.captured.nodes.modes import is_of_training
from chop.errors import ConfigError, enumerate_names
from chop.ir.annotate import record_formats
from chop.ir.graph import MaseGraph
from chop.ir.layers import Layer, check_selector, list_layers, user_besides
from chop.ir.parameters import StoredParameter
from chop.nn.packed import KnownCodes, PackedOperator, pack, why_not_packable
from chop.nn.quantized import QuantizedOperator
from chop.private.modules import class_label, own_parameters

WHERE = "pack_transform_pass"
READ_DIRECTLY = "the model reads directly"
"""Why parameters that belong to no layer of the graph stay float."""
MAX_NAMES = 4


@dataclass(frozen=True)
class PackedRow:
    """What the parameters of one module take.

    Attributes:
        layer: its dotted path.
        kind: its class.
        elements: of all its parameters.
        bytes: that they take, scales included.
        bits: per element.
        why_float: why its weight is not packed; empty where it is.
        parameters: their names in the model.
    """

    layer: str
    kind: str
    elements: int
    bytes: int
    bits: float
    why_float: str
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Selection:
    """Layers that are chosen by operator, module path, node name or a pattern of these.

    Attributes:
        include: selectors; None takes every layer with parameters.
        exclude: selectors of those to be left out.
    """

    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()


def pack_layers(mg: MaseGraph, selection: Selection, exact: bool) -> tuple[int, dict[str, str]]:
    """Replaces the chosen quantized layers by their packed twins.

    Args:
        mg: the graph; it is changed. Learned scales of all operators become part of the formats.
        selection: which layers.
        exact: see `chop.nn.packed.pack`.
    Returns: how many were packed, and by path the reason for each layer that stays float.

    Raises:
        ConfigError: a selector means no layer, there is none to pack, or learned scales still wait
            for a first batch.
    """
    _freeze_scales(mg)
    layers = _layers(mg)
    chosen = _choose(layers, selection)
    floats = [layer for layer in chosen if not isinstance(layer.module, PackedOperator)]
    reasons, known = _why_float(mg, layers, floats)
    packable = [layer for layer in floats if layer.path not in reasons]
    if not packable and floats == chosen:
        raise ConfigError(f"{WHERE}: there is nothing to pack. {_explain(reasons)}")
    weights = {f"{layer.path}.{name}" for layer in packable for name in ("weight", "bias")}
    if any(is_of_training(node) and str(node.target) in weights for node in mg.nodes):
        mg.keep_evaluation("weights that train() reads are packed")
    for layer in packable:
        assert isinstance(layer.module, QuantizedOperator)
        mg.replace(layer.nodes[0], pack(layer.module, known, exact))
    return len(packable), reasons


def unpack_layers(mg: MaseGraph, selection: Selection) -> tuple[int, dict[str, str]]:
    """Gives packed layers their parameters back, with the values that were stored.

    Returns: how many, and by path the reason for each layer that is float now.

    Raises:
        ConfigError: a selector means no layer, or no chosen layer is packed.
    """
    chosen = _choose(_layers(mg), selection)
    shared: dict[int, nn.Parameter | None] = {}
    packed = [layer for layer in chosen if isinstance(layer.module, PackedOperator)]
    for layer in packed:
        assert isinstance(layer.module, PackedOperator)
        twin = layer.module.unpack()
        for name in layer.module.packed_shapes:
            codes = layer.module.encoded(name).codes
            own_parameters(twin)[name] = shared.setdefault(id(codes), own_parameters(twin)[name])
        mg.replace(layer.nodes[0], twin)
    if not packed:
        raise ConfigError(f"{WHERE}: there is nothing to unpack: no chosen layer is packed.")
    unpacked = {layer.path for layer in packed}
    return len(packed), {
        layer.path: "was unpacked" if layer.path in unpacked else _why_not_packed(layer)
        for layer in _layers(mg)
        if not isinstance(layer.module, PackedOperator)
    }


def _why_not_packed(layer: Layer) -> str:
    return why_not_packable(layer.module) or "was not packed"


def _freeze_scales(mg: MaseGraph) -> None:
    settled: list[QuantizedOperator] = []
    for node in mg.nodes:
        module = mg.get_module(node)
        if isinstance(module, QuantizedOperator) and module.spec.lsq_operands:
            module = module.freeze_scales()
            mg.replace(node, module)
            settled.append(module)
        if isinstance(module, QuantizedOperator) and module in settled and "mase" in node.meta:
            record_formats(node, module)


def _layers(mg: MaseGraph) -> list[Layer]:
    """Every module with parameters of its own that a node calls, in the order of the graph."""
    return list_layers(mg, lambda _, x: bool(own_parameters(x)) or isinstance(x, PackedOperator))


def _choose(layers: Sequence[Layer], selection: Selection) -> list[Layer]:
    for selector in (*(selection.include or ()), *selection.exclude):
        check_selector(selector, layers, WHERE, "with parameters")
    return [
        layer
        for layer in layers
        if (selection.include is None or any(map(layer.answers_to, selection.include)))
        and not any(map(layer.answers_to, selection.exclude))
    ]


def _why_float(
    mg: MaseGraph, layers: Iterable[Layer], chosen: Sequence[Layer]
) -> tuple[dict[str, str], KnownCodes]:
    """Why layers stay float, by path, and the codes of those that do not."""
    known: KnownCodes = {}
    reasons = {layer.path: "was not chosen" for layer in layers if layer not in chosen}
    for layer in chosen:
        reason = why_not_packable(layer.module, known)
        if reason is not None:
            reasons[layer.path] = reason
    while True:  # what one layer keeps float, another that shares it must keep too
        free = [layer for layer in chosen if layer.path not in reasons]
        modules = [layer.module for layer in free]
        users = {layer.path: user_besides(mg, layer.module.weight, modules) for layer in free}
        shared = {path: f"shares its weight with {user}" for path, user in users.items() if user}
        if not shared:
            return reasons, known
        reasons.update(shared)


def _explain(reasons: dict[str, str]) -> str:
    if not reasons:
        return "The graph has no layer with parameters."
    path, reason = next(iter(reasons.items()))
    return f"Layer '{path}' {reason}; quantize it first with quantize_transform_pass."


def packed_rows(
    mg: MaseGraph, stored: Iterable[StoredParameter], reasons: Mapping[str, str]
) -> list[PackedRow]:
    """A row per module with parameters.

    Args:
        mg: the graph.
        stored: its `stored_parameters`.
        reasons: why layers stay float, by path, from `pack_layers`.
    """
    by_layer: dict[str, list[StoredParameter]] = {}
    for parameter in stored:
        by_layer.setdefault(parameter.name.rpartition(".")[0], []).append(parameter)
    return [_row(mg, path, parts, reasons.get(path, "")) for path, parts in by_layer.items()]


def _row(mg: MaseGraph, path: str, parts: Sequence[StoredParameter], reason: str) -> PackedRow:
    module = mg.model.get_submodule(path)
    packed = isinstance(module, PackedOperator)
    elements = sum(part.value.numel() for part in parts)
    size = sum(part.held_bytes for part in parts)
    why = "" if packed else reason or READ_DIRECTLY
    bits, names = 8 * size / max(elements, 1), tuple(part.name for part in parts)
    return PackedRow(path, class_label(module), elements, size, bits, why, names)


def explained(reason: str, parameters: Sequence[str]) -> str:
    """Why parameters stay float, with the names of those that belong to no layer.

    Args:
        reason: `PackedRow.why_float`.
        parameters: names of all that stay float for it.
    """
    if reason != READ_DIRECTLY:
        return reason
    return f"{reason} ({enumerate_names(parameters, MAX_NAMES)})"
