"""Stores quantised weights as codes: the model then really is as small as its formats say."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from chop.errors import ConfigError
from chop.ir.annotate import record_formats
from chop.ir.graph import MaseGraph
from chop.ir.layers import Layer, check_selector, layers_of, user_besides
from chop.ir.parameters import StoredParameter, stored_parameters, total_bits
from chop.nn.packed import KnownCodes, PackedOperator, obstacle, pack
from chop.nn.quantized import QuantizedOperator
from chop.passes.base import graph_pass
from chop.tables import print_table

WHERE = "pack_transform_pass"


@dataclass(frozen=True)
class PackConfig:
    """Settings of `pack_transform_pass`.

    Attributes:
        include: operators, module paths, node names or patterns of these; default, every
            quantised layer.
        exclude: the same, to be left out.
        exact: packed layers give the same bits as unpacked ones; otherwise linear layers are
            multiplied in the fastest way that is precise enough for their formats, see `pack`.
        unpack: gives packed layers their parameters back instead.
        silent: prints no table.
    """

    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    exact: bool = False
    unpack: bool = False
    silent: bool = False


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
    """

    layer: str
    kind: str
    elements: int
    bytes: int
    bits: float
    why_float: str


@graph_pass(config=PackConfig, takes_packed=True)
def pack_transform_pass(mg: MaseGraph, config: PackConfig) -> dict[str, Any]:
    """Replaces quantised parameters by bit-packed codes and scales; what is computed stays.

    Learnt scales of all operators settle first: they become part of the formats. A packed graph
    runs, draws, and is exported and read back as any other. It is not trained:
    `{"unpack": True}` gives the layers their parameters back, with the values that were stored.

    Returns: `{"packed": number of layers, "unpacked": number of layers, "rows": [row as dict],
        "bits_per_weight": of the weights that are packed, from their buffers, or None,
        "float_bytes": what all parameters took as floats, "bytes": what they take now}`.

    Raises:
        ConfigError: a selector means no layer, there is none to pack or unpack, or learnt scales
            still wait for a first batch.

    Example::

        mg, info = pack_transform_pass(mg, {"exclude": ["classifier"]})
    """
    if config.unpack:
        unpacked = _unpack(mg, _choose(_layers(mg), config))
        return {"packed": 0, "unpacked": unpacked, **_measure(mg, {}, config)}
    _settle(mg)
    layers = _layers(mg)
    chosen = _choose(layers, config)
    floats = [layer for layer in chosen if not isinstance(layer.module, PackedOperator)]
    reasons, known = _obstacles(mg, layers, floats)
    packable = [layer for layer in floats if layer.path not in reasons]
    if not packable and floats == chosen:
        raise ConfigError(f"{WHERE}: there is nothing to pack. {_explain(reasons)}")
    for layer in packable:
        assert isinstance(layer.module, QuantizedOperator)
        mg.replace(layer.nodes[0], pack(layer.module, known, config.exact))
    return {"packed": len(packable), "unpacked": 0, **_measure(mg, reasons, config)}


def _settle(mg: MaseGraph) -> None:
    settled: list[QuantizedOperator] = []
    for node in mg.nodes:
        module = mg.module_of(node)
        if isinstance(module, QuantizedOperator) and module.spec.learnt_operands:
            module = module.settled()
            mg.replace(node, module)
            settled.append(module)
        if isinstance(module, QuantizedOperator) and module in settled and "mase" in node.meta:
            record_formats(node, module)


def _layers(mg: MaseGraph) -> list[Layer]:
    """Every module with parameters of its own that a node calls, in the order of the graph."""
    return layers_of(mg, lambda _, x: bool(x._parameters) or isinstance(x, PackedOperator))


def _choose(layers: Sequence[Layer], config: PackConfig) -> list[Layer]:
    for selector in (*(config.include or ()), *config.exclude):
        check_selector(selector, layers, WHERE, "with parameters")
    return [
        layer
        for layer in layers
        if (config.include is None or any(map(layer.answers_to, config.include)))
        and not any(map(layer.answers_to, config.exclude))
    ]


def _obstacles(
    mg: MaseGraph, layers: Iterable[Layer], chosen: Sequence[Layer]
) -> tuple[dict[str, str], KnownCodes]:
    """Why layers stay float, by path, and the codes of those that do not."""
    known: KnownCodes = {}
    reasons = {layer.path: "was not chosen" for layer in layers if layer not in chosen}
    for layer in chosen:
        reason = obstacle(layer.module, known)
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
    return f"Layer '{path}' {reason}; quantise it first with quantize_transform_pass."


def _unpack(mg: MaseGraph, chosen: Iterable[Layer]) -> int:
    shared: dict[int, nn.Parameter | None] = {}
    packed = [layer for layer in chosen if isinstance(layer.module, PackedOperator)]
    for layer in packed:
        assert isinstance(layer.module, PackedOperator)
        twin = layer.module.unpack()
        for name in layer.module.packed_shapes:
            codes = layer.module.encoded(name).codes
            twin._parameters[name] = shared.setdefault(id(codes), twin._parameters[name])
        mg.replace(layer.nodes[0], twin)
    if not packed:
        raise ConfigError(f"{WHERE}: there is nothing to unpack: no chosen layer is packed.")
    return len(packed)


def _measure(mg: MaseGraph, reasons: dict[str, str], config: PackConfig) -> dict[str, Any]:
    stored = stored_parameters(mg)
    rows = _rows(mg, stored, reasons)
    weights = [s for s in stored if s.packed and s.operand == "weight"]
    bits, count = total_bits(weights)
    if not config.silent:
        print_table("What parameters take", _grouped(rows))
    return {
        "rows": [dataclasses.asdict(row) for row in rows],
        "bits_per_weight": bits / count if count else None,
        "float_bytes": sum(s.value.nbytes for s in stored),
        "bytes": sum(row.bytes for row in rows),
    }


def _rows(
    mg: MaseGraph, stored: Iterable[StoredParameter], reasons: dict[str, str]
) -> list[PackedRow]:
    by_layer: dict[str, list[StoredParameter]] = {}
    for parameter in stored:
        by_layer.setdefault(parameter.name.rpartition(".")[0], []).append(parameter)
    return [_row(mg, path, parts, reasons.get(path, "")) for path, parts in by_layer.items()]


def _row(mg: MaseGraph, path: str, parts: Sequence[StoredParameter], reason: str) -> PackedRow:
    module = mg.model.get_submodule(path)
    packed = isinstance(module, PackedOperator)
    elements = sum(part.value.numel() for part in parts)
    size = sum(part.held_bytes for part in parts)
    why = "" if packed else reason or "is no layer of the graph, which reads its parameters itself"
    return PackedRow(path, type(module).__name__, elements, size, 8 * size / max(elements, 1), why)


def _grouped(rows: Iterable[PackedRow]) -> list[dict[str, Any]]:
    """A line for all modules of a kind that stayed float for the same reason, or did not."""
    groups: dict[tuple[str, str], list[PackedRow]] = {}
    for row in rows:
        groups.setdefault((row.kind, row.why_float), []).append(row)
    lines = []
    for (kind, reason), members in groups.items():
        elements, size = sum(r.elements for r in members), sum(r.bytes for r in members)
        bits = f"{8 * size / max(elements, 1):.3f}"
        counts = {"modules": len(members), "elements": elements, "bytes": size, "bits": bits}
        lines.append({"kind": kind, **counts, "why float": reason})
    return lines
