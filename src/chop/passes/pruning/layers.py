"""The layers of a graph whose weights or inputs can be pruned, and how settings choose them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor, fx, nn

from chop.dotted import deepgetattr
from chop.errors import ConfigError, did_you_mean
from chop.formats import QuantSpec
from chop.ir.graph import MaseGraph
from chop.ir.ops import Operator, Weight
from chop.nn.quantized import QuantizedOperator

Sparsity = float | Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Layer:
    """A module with a weight, and the nodes that call it.

    Attributes:
        path: its dotted path, the first if it has several.
        row: of the operator table.
        module: the module.
        nodes: the nodes that call it, in order.
    """

    path: str
    row: Operator
    module: nn.Module
    nodes: tuple[fx.Node, ...]

    @property
    def weight(self) -> Tensor:
        """The stored weight."""
        return cast(Tensor, self.module.weight)

    @property
    def axes(self) -> Weight:
        """The axes of the weight."""
        assert self.row.weight is not None
        return self.row.weight

    def answers_to(self, selector: str) -> bool:
        """True when an operator name, a path, a node name or a pattern of these means it."""
        names = (self.row.name, self.path, *(node.name for node in self.nodes))
        return selector in names or any(re.fullmatch(selector, name) for name in names)


def layers_of(mg: MaseGraph, wanted: Callable[[Operator, nn.Module], bool]) -> list[Layer]:
    """The modules that a graph calls, in its order, those that are wanted."""
    calls: dict[nn.Module, list[fx.Node]] = {}
    for node in mg.nodes:
        module = mg.module_of(node)
        if module is not None and wanted(mg.operator(node), module):
            calls.setdefault(module, []).append(node)
    return [
        Layer(str(nodes[0].target), mg.operator(nodes[0]), module, tuple(nodes))
        for module, nodes in calls.items()
    ]


def prunable_layers(mg: MaseGraph) -> list[Layer]:
    """Every layer that can be pruned, in the order of the graph; embedding tables too."""
    return layers_of(mg, lambda row, _: row.weight is not None and row.quantized is not None)


def choose(
    layers: Sequence[Layer],
    sparsity: Sparsity,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    where: str = "prune_transform_pass",
) -> dict[Layer, float]:
    """The layers to prune, each with its sparsity.

    Args:
        layers: those there are.
        sparsity: one number, or numbers by selector; where several selectors mean a layer, one
            that names it exactly comes first. Layers that none means are left alone.
        include: selectors; default, all but embedding tables, and with several sparsities whatever
            they name.
        exclude: selectors.
        where: for messages.

    Raises:
        ConfigError: a selector means no layer.
    """
    by_layer = isinstance(sparsity, Mapping)
    wanted = list(include or ())
    unwanted = list(exclude)
    shares = dict(sparsity) if isinstance(sparsity, Mapping) else {}
    for selector in [*wanted, *unwanted, *shares]:
        check_selector(selector, layers, where)
    chosen: dict[Layer, float] = {}
    for layer in layers:
        taken = not wanted or any(map(layer.answers_to, wanted))
        if include is None:
            taken = by_layer or layer.row.is_product
        if taken and not any(map(layer.answers_to, unwanted)):
            share = _share(layer, shares) if isinstance(sparsity, Mapping) else sparsity
            if share is not None:
                chosen[layer] = share
    if not chosen:
        raise ConfigError(f"{where}: the settings choose no layer of this graph.")
    return chosen


def _share(layer: Layer, shares: Mapping[str, float]) -> float | None:
    names = (layer.path, *(node.name for node in layer.nodes), layer.row.name)
    exact = [shares[name] for name in names if name in shares]
    matching = [share for selector, share in shares.items() if layer.answers_to(selector)]
    return next(iter([*exact, *matching]), None)


def check_selector(
    selector: str, layers: Sequence[Layer], where: str, which: str = "that can be pruned"
) -> None:
    """Raises ConfigError where a selector means no layer; `which` says what layers there are."""
    try:
        found = any(layer.answers_to(selector) for layer in layers)
    except re.error as error:
        raise ConfigError(f"{where}: '{selector}' is no regular expression: {error}.") from None
    if not found:
        names = {x for layer in layers for x in (layer.path, layer.row.name)}
        nearest = did_you_mean(selector, names)
        raise ConfigError(f"{where}: no layer {which} matches '{selector}': {nearest}")


def as_carrier(mg: MaseGraph, layer: Layer) -> Layer:
    """The layer with an operator that can carry a mask; it replaces the layer's own module."""
    if isinstance(layer.module, QuantizedOperator):
        return layer
    assert layer.row.quantized is not None
    carrier = layer.row.quantized.from_float(layer.module, QuantSpec())
    for node in layer.nodes:
        mg.replace(node, carrier)
    return replace(layer, module=carrier)


def with_sharers(mg: MaseGraph, layer: Layer, layers: Sequence[Layer]) -> list[Layer]:
    """The layer and those that have the same weight: one mask must serve them all.

    Raises:
        ConfigError: something that cannot carry a mask uses the weight too.
    """
    weight = layer.module.weight
    # A parametrised weight is another tensor each time: the layer would not find itself.
    sharing = [other for other in layers if other is layer or other.module.weight is weight]
    user = user_besides(mg, weight, [other.module for other in sharing])
    if user is not None:
        raise ConfigError(
            f"prune_transform_pass: '{layer.path}' shares its weight with {user}, which cannot "
            f"carry a mask; exclude '{layer.path}'."
        )
    return sharing


def user_besides(mg: MaseGraph, tensor: object, modules: Sequence[nn.Module]) -> str | None:
    """Names something that uses a parameter, `modules` aside; None if nothing does."""
    known = {id(module) for module in modules}
    for node in mg.nodes:
        called = mg.module_of(node)
        for module in called.modules() if called is not None else ():
            if id(module) not in known and any(x is tensor for x in module._parameters.values()):
                return f"the {type(module).__name__} '{node.target}'"
        if node.op == "get_attr" and deepgetattr(mg.model, str(node.target)) is tensor:
            return f"node '{node.name}'"
    return None
