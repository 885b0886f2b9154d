"""Sparsity: counts of exact zeros in weights and activations of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from chop.captured.padding.hidden import visible
from chop.ir.batches import observe_nodes
from chop.ir.graph import MaseGraph
from chop.ir.layers import Layer
from chop.ir.parameters import masked_weights
from chop.nn.packed import PackedOperator
from chop.nn.quantized.computed import PARAMETRIZATIONS, masked_parameter, with_plain_weights
from chop.nn.sparsity import get_masked
from chop.private.modules import own_parameters
from chop.pruning.layers import prunable_layers


@dataclass(frozen=True)
class ZeroCount:
    """Count of zeros in tensors.

    Attributes:
        elements: number of elements.
        zeros: number of elements that are exactly zero.
    """

    elements: int = 0
    zeros: int = 0

    @classmethod
    def of(cls, x: Tensor) -> ZeroCount:
        """Counts the zeros of a tensor of any shape."""
        return cls(x.numel(), int((x.detach() == 0).sum()))

    def __add__(self, other: ZeroCount) -> ZeroCount:
        return ZeroCount(self.elements + other.elements, self.zeros + other.zeros)

    @property
    def share(self) -> float:
        """Share of zeros; 0 without elements."""
        return self.zeros / max(self.elements, 1)


def total(counts: Iterable[ZeroCount]) -> ZeroCount:
    """Sums counts."""
    return sum(counts, ZeroCount())


def weight_zeros(mg: MaseGraph) -> dict[str, tuple[ZeroCount, int]]:
    """Counts zeros, and masked elements among them, of parameters with at least two dimensions.

    A parameter computed by torch hooks or parametrizations is counted by its computed value, under
    its own name.

    Returns: by dotted path in model order, the first path of a shared one; packed ones are last.
    """
    counts: dict[str, tuple[ZeroCount, int]] = {}
    for name, weight, mask in [*_weights(mg), *_packed_weights(mg)]:
        if weight.dim() > 1:
            seen = weight if mask is None else weight.masked_fill(mask, 0)
            counts[name] = ZeroCount.of(seen), 0 if mask is None else int(mask.sum())
    return counts


def _weights(mg: MaseGraph) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Yields the parameters that a graph computes with, each once, and their masks."""
    masks = masked_weights(mg)
    # Keeps computed parameters alive, since the next one could get the identity of a freed one.
    seen: dict[int, nn.Parameter] = {}
    for path, module in mg.model.named_modules():
        if PARAMETRIZATIONS in path.split("."):
            continue
        for name, parameter in own_parameters(with_plain_weights(module)).items():
            if parameter is None or id(parameter) in seen:
                continue
            seen[id(parameter)] = parameter
            own, mask = masked_parameter(module, name)
            weight = parameter.detach()
            yield f"{path}.{own}".lstrip("."), weight, masks.get(id(parameter), mask)


def _packed_weights(mg: MaseGraph) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    for path, module in mg.model.named_modules():
        if isinstance(module, PackedOperator):
            yield f"{path}.weight", module.weight, get_masked(module)


def activation_zeros(
    mg: MaseGraph, batches: Iterable[Mapping[str, Any]]
) -> dict[fx.Node, ZeroCount]:
    """Counts zeros in results of calls that are one real tensor, in graph order.

    Args:
        mg: graph, which runs in eval mode; its mode is restored.
        batches: from `select_inputs`.
    """

    def get_result(node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> Tensor | None:
        is_real = isinstance(result, Tensor) and result.is_floating_point()
        return result if is_real and node.op.startswith("call_") else None

    return _observed(mg, batches, get_result)


def layer_zeros(
    mg: MaseGraph, batches: Iterable[Mapping[str, Any]]
) -> dict[Layer, tuple[ZeroCount, ZeroCount]]:
    """Counts zeros in the weight and the inputs of each linear and convolution layer."""
    layers = [layer for layer in prunable_layers(mg) if layer.row.is_product]
    nodes = {node for layer in layers for node in layer.nodes}

    def find_input(node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> Tensor | None:
        return values[node.all_input_nodes[0]] if node in nodes else None

    inputs = _observed(mg, batches, find_input)
    return {
        layer: (ZeroCount.of(layer.weight), total(inputs[node] for node in layer.nodes))
        for layer in layers
    }


def _observed(
    mg: MaseGraph,
    batches: Iterable[Mapping[str, Any]],
    choose: Callable[[fx.Node, Mapping[fx.Node, Any], Any], Tensor | None],
) -> dict[fx.Node, ZeroCount]:
    """Counts zeros of the tensor that `choose` returns at each node, without padding."""
    counts: dict[fx.Node, ZeroCount] = {}

    def count(node: fx.Node, values: Mapping[fx.Node, Any], result: Any) -> None:
        chosen = choose(node, values, result)
        if chosen is not None:
            counts[node] = counts.get(node, ZeroCount()) + ZeroCount.of(visible(chosen))

    observe_nodes(mg, batches, count)
    return counts
