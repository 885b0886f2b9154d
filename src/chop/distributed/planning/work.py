"""Work of a node: floating-point operations, and bytes between a process and its memory."""

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
    """Operations of a call on whole tensors; 0 for operators that multiply no matrices.

    Args:
        mg: the graph.
        node: one of its nodes.
        inputs: results of the nodes that it reads, or tensors for each of them, in order.
        results: the tensors that it gives.
        counts: keeps the counts of calls that are not in the operator table's rules.
    """
    if not results:
        return 0
    values = inputs
    if not isinstance(values, Mapping):
        values = dict(zip(node.all_input_nodes, values, strict=False))
    return (counts or FlopCounts()).count_node(mg.model, node, values, results)


def moves_memory(inputs: Iterable[Tensor], results: Iterable[Tensor]) -> bool:
    """Whether a call reads and writes tensors; a view gives the memory that it was given."""
    given = {storage_id(x) for x in inputs}
    return any(storage_id(x) not in given for x in results)


def reads_whole_tensors(mg: MaseGraph, node: fx.Node) -> bool:
    """Whether a call reads all of its parameters; of a table only the rows that are asked for."""
    weight = mg.operator(node).weight
    return weight is None or not weight.is_table
