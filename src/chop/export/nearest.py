"""Nearest formats: replacements for formats that a target cannot store.

Each rejected module tries one spec after the other, nearest first, until the target accepts the
graph: the same weight with float inputs, then weights in the target's formats, then floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice

from torch import Tensor, nn

from chop.errors import ConfigError
from chop.export.target import Target
from chop.formats import NumberFormat, Quantizer, QuantSpec, parse_format_string
from chop.formats.elements import Element
from chop.ir.annotate import record_formats
from chop.ir.graph import MaseGraph
from chop.ir.layers import Layer, list_layers
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator
from chop.private.modules import own_parameters
from chop.quantization.packing import Selection, pack_layers

FLOAT = "float"
BESIDE_INPUTS = 3
"""Weight formats tried together with the module's rounded inputs, before inputs become floats."""


@dataclass(frozen=True)
class Change:
    """Module that a target cannot store, and its replacement.

    Attributes:
        path: path of the module.
        reason: reason of the rejection.
        old: formats of the module.
        new: nearest formats; None if no formats help.
        is_from_float: the weight is rounded from floats instead of from rounded values.
    """

    path: str
    reason: str
    old: QuantSpec | None
    new: QuantSpec | None
    is_from_float: bool = False


def nearest_graph(
    target: Target, mg: MaseGraph, source: MaseGraph
) -> tuple[MaseGraph, list[Change]]:
    """Returns a graph that a target can store, and the modules with other formats.

    Args:
        target: target, queried by its `refusals`.
        mg: graph with packed weights; it is not changed.
        source: same model with float weights for rounding, if available.
    Returns: the graph, which is `mg` itself if nothing changed, and the changes. If a change has
        no `new` formats, the target still rejects the graph.

    Raises:
        ConfigError: if the target cannot store such a model in any format.
    """
    layers, graph = _by_path(mg), mg
    refused = _by_layer(target.refusals(mg), layers)
    reasons, specs = dict(refused), dict[str, QuantSpec]()
    weights = _Weights(layers, source)
    options: dict[str, Iterator[QuantSpec]] = {}
    formats: list[str | NumberFormat] = [*target.formats]
    formats += dict.fromkeys(_weight_formats(layers.values()))
    while refused:
        for path in refused:
            reasons.setdefault(path, refused[path])
            if path in layers and path not in options:
                options[path] = _options(layers[path], formats, weights)
            spec = next(options.get(path, iter(())), None)
            if spec is None:  # no formats help
                changes = _changes(reasons, specs, layers, weights)
                return graph, [_without_new(x) if x.path in refused else x for x in changes]
            specs[path] = spec
        graph = _with_specs(mg, specs, weights)
        refused = _by_layer(target.refusals(graph), layers)
    return graph, _changes(reasons, specs, layers, weights)


def _by_layer(refused: Mapping[str, str], layers: Mapping[str, Layer]) -> dict[str, str]:
    """Returns reasons by the path of the layer that contains a module, or by the module's path."""
    by_layer: dict[str, str] = {}
    for path, reason in refused.items():
        parts = path.split(".")
        ends = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        by_layer.setdefault(next((x for x in ends if x in layers), path), reason)
    return by_layer


def _changes(
    reasons: Mapping[str, str],
    specs: Mapping[str, QuantSpec],
    layers: Mapping[str, Layer],
    weights: _Weights,
) -> list[Change]:
    changes = []
    for path, reason in reasons.items():
        module = layers[path].module if path in layers else None
        old = module.spec if isinstance(module, QuantizedOperator) else None
        is_from_float = path in layers and weights.has_floats(layers[path])
        changes.append(Change(path, reason, old, specs.get(path), is_from_float))
    return changes


def _without_new(change: Change) -> Change:
    return Change(change.path, change.reason, change.old, None)


def describe(spec: QuantSpec | None) -> str:
    """Returns the formats of a module for a table: its weight, and other quantized operands."""
    if spec is None or spec.is_float:
        return FLOAT
    names = {"data_in": "inputs", "data_out": "results"}
    others = [f"{names[x]} {q.label}" for x, q in spec.items() if x in names and not q.is_identity]
    return ", ".join([*([] if spec.weight.is_identity else [spec.weight.label]), *others]) or FLOAT


def _by_path(mg: MaseGraph) -> dict[str, Layer]:
    """Returns the quantized modules that a graph calls, at each of their paths."""
    layers = list_layers(mg, lambda _, module: isinstance(module, QuantizedOperator))
    called = {id(layer.module): layer for layer in layers}
    named = mg.model.named_modules(remove_duplicate=False)
    return {path: called[id(module)] for path, module in named if id(module) in called}


def _weight_formats(layers: Iterable[Layer]) -> Iterator[NumberFormat]:
    """Returns the model's weight formats, because some targets need one format for all modules."""
    for layer in layers:
        weight = layer.module.spec.weight if isinstance(layer.module, QuantizedOperator) else None
        if isinstance(weight, NumberFormat) and not weight.is_identity:
            yield weight


@dataclass(frozen=True)
class _Weights:
    """Source of the weights to round."""

    layers: Mapping[str, Layer]
    source: MaseGraph

    def has_floats(self, layer: Layer) -> bool:
        """Returns True if the source has the weight in floats."""
        return self._original(layer) is not None

    def of(self, layer: Layer) -> QuantizedOperator:
        """Returns a module with parameters to round: the source's floats or the layer's values."""
        module, original = layer.module, self._original(layer)
        assert isinstance(module, QuantizedOperator)
        if not isinstance(module, PackedOperator):
            return module
        twin = module.unpack()
        if original is not None:
            own = own_parameters(original)
            own_parameters(twin).update({name: own[name] for name in module.packed_shapes})
        return twin

    def _original(self, layer: Layer) -> nn.Module | None:
        """Returns the source's module if it has all coded parameters of the layer."""
        module = layer.module
        if not isinstance(module, PackedOperator):
            return module
        try:
            original = self.source.model.get_submodule(layer.path)
        except AttributeError:
            return None
        own = own_parameters(original)
        shapes = module.packed_shapes.items()
        is_whole = all((x := own.get(name)) is not None and x.shape == s for name, s in shapes)
        return None if isinstance(original, PackedOperator) or not is_whole else original


def _options(
    layer: Layer, formats: Iterable[str | NumberFormat], weights: _Weights
) -> Iterator[QuantSpec]:
    """Yields replacement specs of a module, nearest first and floats last."""
    module = layer.module
    assert isinstance(module, QuantizedOperator)
    own = module.spec
    spec = QuantSpec(own.data_in, own.weight, own.bias, own.data_out)
    plain = spec.keeping("weight", "bias")
    plain = plain.with_quantizers(data_out=QuantSpec().data_out)
    has_weight = isinstance(module, PackedOperator) or "weight" in own_parameters(module)
    if has_weight:
        if plain != spec and not plain.is_float:
            yield plain
        if plain == spec:
            yield from _with_weights(spec, formats, layer, weights)
        else:
            yield from islice(_with_weights(spec, formats, layer, weights), BESIDE_INPUTS)
            yield from _with_weights(plain, formats, layer, weights)
    yield QuantSpec()


def _with_weights(
    spec: QuantSpec, formats: Iterable[str | NumberFormat], layer: Layer, weights: _Weights
) -> Iterator[QuantSpec]:
    if spec.weight.is_identity or not isinstance(spec.weight, NumberFormat):
        return
    values = weights.of(layer).effective("weight").detach()
    for number_format in ranked(formats, spec.weight, values):
        yield spec.with_quantizers(weight=number_format)


def ranked(
    formats: Iterable[str | NumberFormat], old: NumberFormat, values: Tensor
) -> Iterator[NumberFormat]:
    """Ranks candidate formats of a weight, nearest first.

    Elements with as many bits or more come first, then elements of the same kind, then the smallest
    difference in bits. The rounding error breaks ties.

    Args:
        formats: candidates, as strings or formats.
        old: format of the weight.
        values: values of the weight.
    """
    parsed = (parse_format_string(x) if isinstance(x, str) else x for x in formats)
    fitted = (x.fitted(values) for x in parsed if isinstance(x, NumberFormat))
    candidates = {x.key: x for x in fitted if x.key != old.key}
    kind, bits = _element(old, values)

    def distance(candidate: NumberFormat) -> tuple[bool, bool, float]:
        own_kind, own_bits = _element(candidate, values)
        return own_bits < bits, own_kind is not kind, abs(own_bits - bits)

    for _, tied in groupby(sorted(candidates.values(), key=distance), key=distance):
        yield from sorted(tied, key=lambda x: rounding_error(x, values))


def _element(number_format: NumberFormat, values: Tensor) -> tuple[type[Element] | None, float]:
    """Returns the kind of a format's elements and their bits; bits per value without a layout."""
    layout = number_format.layout()
    if layout is None:
        return None, number_format.bits(values.shape)
    return type(layout.element), layout.element.width


def rounding_error(number_format: Quantizer, values: Tensor) -> float:
    """Returns the rounding error of a tensor relative to its norm."""
    wide = values.double()
    apart = (number_format(values).double() - wide).norm()
    return float(apart / wide.norm()) if bool(wide.any()) else float(apart)


def _with_specs(mg: MaseGraph, specs: Mapping[str, QuantSpec], weights: _Weights) -> MaseGraph:
    """Returns a graph with modules in other formats, packed if possible."""
    graph = mg.sharing_copy()
    layers = _by_path(graph)
    for path, spec in specs.items():
        twin = weights.of(weights.layers[path]).with_spec(spec)
        for node in layers[path].nodes:
            graph.replace(node, twin)
            if "mase" in node.meta:
                record_formats(node, twin)
    with suppress(ConfigError):  # raised if no layer remains to pack
        pack_layers(graph, Selection(), exact=False)
    return graph
