"""Work of a node: floating-point operations and memory traffic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from chop.ir.flops import FlopCounts
from chop.ir.graph import MaseGraph
from chop.private.torch_api import storage_id


def count_flops(
    mg: MaseGraph,
    node: fx.Node,
    inputs: Mapping[fx.Node, Any] | Sequence[Tensor],
    results: Sequence[Tensor],
    counts: FlopCounts | None = None,
) -> int:
    """Counts the operations of a call on whole tensors; 0 for operators without matrix products.

    Args:
        mg: the graph.
        node: one of its nodes.
        inputs: results of the input nodes, or tensors for each of them, in order.
        results: result tensors.
        counts: cache for calls without a rule in the operator table.
    """
    if not results:
        return 0
    values = inputs
    if not isinstance(values, Mapping):
        values = dict(zip(node.all_input_nodes, values, strict=False))
    return (counts or FlopCounts()).count_node(mg.model, node, values, results)


def moves_memory(inputs: Iterable[Tensor], results: Iterable[Tensor]) -> bool:
    """Returns whether a call reads and writes tensors, unlike a view."""
    given = {storage_id(x) for x in inputs}
    return any(storage_id(x) not in given for x in results)


def reads_whole_tensors(mg: MaseGraph, node: fx.Node) -> bool:
    """Returns whether a call reads all of its parameters, unlike a table lookup."""
    weight = mg.operator(node).weight
    return weight is None or not weight.is_table
