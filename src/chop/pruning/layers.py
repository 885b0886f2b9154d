"""Prunable layers, and their selection by settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from chop.captured.nodes.modes import is_of_training
from chop.errors import ConfigError
from chop.formats import QuantSpec
from chop.ir.graph import MaseGraph
from chop.ir.layers import Layer, check_selector, list_layers, user_besides
from chop.nn.quantized import QuantizedOperator

Sparsity = float | Mapping[str, float]


def prunable_layers(mg: MaseGraph) -> list[Layer]:
    """Returns every prunable layer in graph order, including embedding tables."""
    return list_layers(mg, lambda row, _: row.weight is not None and row.quantized is not None)


def choose(
    layers: Sequence[Layer],
    sparsity: Sparsity,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    where: str = "prune_transform_pass",
) -> dict[Layer, float]:
    """Chooses layers to prune. Returns each with its sparsity.

    Args:
        layers: all prunable layers.
        sparsity: one number, or numbers by selector. An exact name takes precedence over other
            selectors. Layers without a matching selector are not pruned.
        include: selectors; default, all except embedding tables and layers that only training
            calls; with sparsities by selector, all that they match.
        exclude: selectors.
        where: name of the pass, for messages.

    Raises:
        ConfigError: if a selector matches no layer.
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
            runs = not all(map(is_of_training, layer.nodes))
            taken = by_layer or (layer.row.is_product and runs)
        if taken and not any(map(layer.answers_to, unwanted)):
            share = _share(layer, shares) if isinstance(sparsity, Mapping) else sparsity
            if share is not None:
                chosen[layer] = share
    if not chosen:
        raise ConfigError(f"{where}: the settings match no layer of this graph.")
    return chosen


def _share(layer: Layer, shares: Mapping[str, float]) -> float | None:
    names = (layer.path, *(node.name for node in layer.nodes), layer.row.name)
    exact = [shares[name] for name in names if name in shares]
    matching = [share for selector, share in shares.items() if layer.answers_to(selector)]
    return next(iter([*exact, *matching]), None)


def as_maskable(mg: MaseGraph, layer: Layer) -> Layer:
    """Returns the layer with an operator that can carry a mask, replacing the layer's module."""
    if isinstance(layer.module, QuantizedOperator):
        return layer
    assert layer.row.quantized is not None
    maskable = layer.row.quantized.from_float(layer.module, QuantSpec())
    for node in layer.nodes:
        mg.replace(node, maskable)
    return replace(layer, module=maskable)


def with_sharers(mg: MaseGraph, layer: Layer, layers: Sequence[Layer]) -> list[Layer]:
    """Returns the layers that share a weight, which need a common mask.

    Raises:
        ConfigError: if a user of the weight cannot carry a mask.
    """
    weight = layer.module.weight
    # A parametrized weight is another tensor each time: the layer would not find itself.
    sharing = [other for other in layers if other is layer or other.module.weight is weight]
    user = user_besides(mg, weight, [other.module for other in sharing])
    if user is not None:
        raise ConfigError(
            f"prune_transform_pass: '{layer.path}' shares its weight with {user}, which cannot "
            f"carry a mask; exclude '{layer.path}'."
        )
    return sharing
