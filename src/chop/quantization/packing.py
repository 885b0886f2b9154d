"""Bit packing of layers: codes and scales replace quantized parameters."""

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
"""Reason that parameters outside the layers of a graph stay float."""
MAX_NAMES = 4


@dataclass(frozen=True)
class PackedRow:
    """Storage of the parameters of a module.

    Attributes:
        layer: dotted path of the module.
        kind: class of the module.
        elements: number of elements of all parameters.
        bytes: stored bytes, including scales.
        bits: bits per element.
        why_float: reason that its weight is not packed, or "".
        parameters: names of the parameters in the model.
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
    """Layers chosen by operator, module path, node name or a pattern of these.

    Attributes:
        include: selectors; None selects all layers with parameters.
        exclude: selectors of excluded layers.
    """

    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()


def pack_layers(mg: MaseGraph, selection: Selection, exact: bool) -> tuple[int, dict[str, str]]:
    """Replaces the chosen quantized layers by packed ones.

    Args:
        mg: graph to change; learned scales of all operators become part of the formats.
        selection: layers to pack.
        exact: see `chop.nn.packed.pack`.
    Returns: the number of packed layers, and by path the reason for each layer that stays float.

    Raises:
        ConfigError: if a selector matches no layer, there is nothing to pack, or learned scales
            need a first batch.
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
    """Unpacks packed layers to float parameters with the stored values.

    Returns: the number of unpacked layers, and by path the reason for each layer that is float now.

    Raises:
        ConfigError: if a selector matches no layer, or no chosen layer is packed.
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
        raise ConfigError(f"{WHERE}: nothing to unpack, since no selected layer is packed.")
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
    """Returns each called module with its own parameters, in graph order."""
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
    """Returns the reasons by path that layers stay float, and the codes of the other layers."""
    known: KnownCodes = {}
    reasons = {layer.path: "is not selected" for layer in layers if layer not in chosen}
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
    """Returns a row per module with parameters.

    Args:
        mg: the graph.
        stored: result of `stored_parameters`.
        reasons: reasons by path that layers stay float, from `pack_layers`.
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
    """Returns the reason that parameters stay float, with their names if they are outside layers.

    Args:
        reason: `PackedRow.why_float`.
        parameters: names of the parameters with this reason.
    """
    if reason != READ_DIRECTLY:
        return reason
    return f"{reason} ({enumerate_names(parameters, MAX_NAMES)})"
