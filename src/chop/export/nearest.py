"""Nearest formats: what a target holds in the place of what it cannot, found by asking it.

A module that a target refuses gets one spec after the other, nearest first, until the target takes
the graph: the same weight with float inputs, then weights in formats of the target's, then floats.
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
"""Formats of a weight that are tried with the module's rounded inputs, before those are floats."""


@dataclass(frozen=True)
class Change:
    """A module that a target cannot hold, and what it holds instead.

    Attributes:
        path: of the module.
        reason: why it is refused.
        old: its formats.
        new: the nearest; None: no formats help.
        is_from_float: its weight is rounded from floats, and not from what was rounded before.
    """

    path: str
    reason: str
    old: QuantSpec | None
    new: QuantSpec | None
    is_from_float: bool = False


def nearest_graph(
    target: Target, mg: MaseGraph, source: MaseGraph
) -> tuple[MaseGraph, list[Change]]:
    """A graph that a target holds, and what it has in other formats.

    Args:
        target: asked by its `refusals`.
        mg: its weights packed; it stays as it is.
        source: the same model with float weights, where there are any, for rounding.
    Returns: the graph, `mg` itself if all is held; and the changes. Where one has no `new`, the
        graph is still refused.

    Raises:
        ConfigError: the target holds no such model, whatever the formats.
    """
    layers, found = _by_path(mg), mg
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
                return found, [_without_new(x) if x.path in refused else x for x in changes]
            specs[path] = spec
        found = _with_specs(mg, specs, weights)
        refused = _by_layer(target.refusals(found), layers)
    return found, _changes(reasons, specs, layers, weights)


def _by_layer(refused: Mapping[str, str], layers: Mapping[str, Layer]) -> dict[str, str]:
    """Reasons by path of the layer that a refused module is part of; else by its own path."""
    found: dict[str, str] = {}
    for path, reason in refused.items():
        parts = path.split(".")
        ends = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        found.setdefault(next((x for x in ends if x in layers), path), reason)
    return found


def _changes(
    reasons: Mapping[str, str],
    specs: Mapping[str, QuantSpec],
    layers: Mapping[str, Layer],
    weights: _Weights,
) -> list[Change]:
    found = []
    for path, reason in reasons.items():
        module = layers[path].module if path in layers else None
        old = module.spec if isinstance(module, QuantizedOperator) else None
        is_from_float = path in layers and weights.has_floats(layers[path])
        found.append(Change(path, reason, old, specs.get(path), is_from_float))
    return found


def _without_new(change: Change) -> Change:
    return Change(change.path, change.reason, change.old, None)


def describe(spec: QuantSpec | None) -> str:
    """The formats of a module for a table: its weight's, and other operands' that have some."""
    if spec is None or spec.is_float:
        return FLOAT
    names = {"data_in": "inputs", "data_out": "results"}
    others = [f"{names[x]} {q.label}" for x, q in spec.items() if x in names and not q.is_identity]
    return ", ".join([*([] if spec.weight.is_identity else [spec.weight.label]), *others]) or FLOAT


def _by_path(mg: MaseGraph) -> dict[str, Layer]:
    """The quantized modules that a graph calls, at each of their paths."""
    layers = list_layers(mg, lambda _, module: isinstance(module, QuantizedOperator))
    called = {id(layer.module): layer for layer in layers}
    named = mg.model.named_modules(remove_duplicate=False)
    return {path: called[id(module)] for path, module in named if id(module) in called}


def _weight_formats(layers: Iterable[Layer]) -> Iterator[NumberFormat]:
    """Of the model: a target that wants one format for all may take that of the other modules."""
    for layer in layers:
        weight = layer.module.spec.weight if isinstance(layer.module, QuantizedOperator) else None
        if isinstance(weight, NumberFormat) and not weight.is_identity:
            yield weight


@dataclass(frozen=True)
class _Weights:
    """Where the weights of layers are rounded from."""

    layers: Mapping[str, Layer]
    source: MaseGraph

    def has_floats(self, layer: Layer) -> bool:
        """Whether the source has the weight in floats."""
        return self._original(layer) is not None

    def of(self, layer: Layer) -> QuantizedOperator:
        """A module with parameters to be rounded; its own are as they were."""
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
        """The source's module, where it has all parameters that the layer has as codes."""
        module = layer.module
        if not isinstance(module, PackedOperator):
            return module
        try:
            found = self.source.model.get_submodule(layer.path)
        except AttributeError:
            return None
        own = own_parameters(found)
        shapes = module.packed_shapes.items()
        is_whole = all((x := own.get(name)) is not None and x.shape == s for name, s in shapes)
        return None if isinstance(found, PackedOperator) or not is_whole else found


def _options(
    layer: Layer, formats: Iterable[str | NumberFormat], weights: _Weights
) -> Iterator[QuantSpec]:
    """Specs in the place of a module's own, nearest first; floats are last."""
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
    """Candidates for a weight, nearest first.

    Elements of as many bits or more come first, of them those of the same kind, of them those of
    the fewest more bits, or of the fewest less; ties are decided by the error that rounding makes.

    Args:
        formats: candidates, as strings or formats.
        old: the format of the weight.
        values: the weight.
    """
    parsed = (parse_format_string(x) if isinstance(x, str) else x for x in formats)
    fitted = (x.fitted(values) for x in parsed if isinstance(x, NumberFormat))
    found = {x.key: x for x in fitted if x.key != old.key}
    kind, bits = _element(old, values)

    def distance(candidate: NumberFormat) -> tuple[bool, bool, float]:
        own_kind, own_bits = _element(candidate, values)
        return own_bits < bits, own_kind is not kind, abs(own_bits - bits)

    for _, tied in groupby(sorted(found.values(), key=distance), key=distance):
        yield from sorted(tied, key=lambda x: rounding_error(x, values))


def _element(number_format: NumberFormat, values: Tensor) -> tuple[type[Element] | None, float]:
    """The kind of a format's elements and their bits; without a layout, bits per value."""
    layout = number_format.layout()
    if layout is None:
        return None, number_format.bits(values.shape)
    return type(layout.element), layout.element.width


def rounding_error(number_format: Quantizer, values: Tensor) -> float:
    """Of a tensor, as a share of its norm."""
    wide = values.double()
    apart = (number_format(values).double() - wide).norm()
    return float(apart / wide.norm()) if bool(wide.any()) else float(apart)


def _with_specs(mg: MaseGraph, specs: Mapping[str, QuantSpec], weights: _Weights) -> MaseGraph:
    """A graph with modules in other formats, packed where they can be."""
    found = mg.sharing_copy()
    layers = _by_path(found)
    for path, spec in specs.items():
        twin = weights.of(weights.layers[path]).with_spec(spec)
        for node in layers[path].nodes:
            found.replace(node, twin)
            if "mase" in node.meta:
                record_formats(node, twin)
    with suppress(ConfigError):  # all of them became floats
        pack_layers(found, Selection(), exact=False)
    return found
