"""Cost estimate of a forward pass, which limits how often a new capture is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

_PRODUCTS = frozenset(
    {"matmul", "__matmul__", "bmm", "mm", "einsum", "baddbmm", "scaled_dot_product_attention"}
)
_LOOKUPS = (nn.Embedding, nn.EmbeddingBag)


def multiply_adds_per_node(captured: fx.GraphModule, values: Mapping[fx.Node, Any]) -> float:
    """Returns the estimated mean number of multiply-adds per node of a graph.

    Args:
        captured: the graph.
        values: fake value of each node at the sizes of the example.
    """
    nodes = captured.graph.nodes
    total = sum(_multiply_adds(node, captured, values) for node in nodes)
    return total / max(1, len(nodes))


def _multiply_adds(node: fx.Node, captured: nn.Module, values: Mapping[fx.Node, Any]) -> int:
    result = values.get(node)
    while isinstance(result, tuple | list) and result:
        result = result[0]
    if not isinstance(result, Tensor) or result.dim() == 0:
        return 0
    outputs = math.prod(map(_example_size, result.shape))
    if node.op == "call_module":
        layer = captured.get_submodule(str(node.target))
        parameters = () if isinstance(layer, _LOOKUPS) else layer.parameters()
        weights = [x for x in parameters if x.dim() > 1]
    else:
        inputs = [values.get(source) for source in node.all_input_nodes]
        weights = [x for x in inputs if isinstance(x, nn.Parameter) and x.dim() > 1]
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if not weights and name in _PRODUCTS:
            sizes = [x.shape[-1] for x in inputs if isinstance(x, Tensor) and x.dim() > 0]
            return outputs * _example_size(sizes[0]) if sizes else 0
    # Linear layers and convolutions apply each weight at each position of the result.
    return sum(x.numel() * outputs // _channels(x, result) for x in weights)


def _channels(weight: Tensor, result: Tensor) -> int:
    sizes = [_example_size(size) for size in result.shape]
    return next((n for n in weight.shape[:2] if n in sizes), sizes[-1]) or 1


def _example_size(size: Any) -> int:
    if isinstance(size, torch.SymInt):  # data-dependent sizes have no hint
        return int(size.node.hint or 1)
    return int(size)
