"""Work of a node: floating-point operations, and bytes between a process and its memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, fx

from chop.ir.graph import MaseGraph
from chop.nn.packed import PackedOperator
from chop.private.modules import parameters_of
from chop.private.torch_api import storage_id


def flops_of(
    mg: MaseGraph, node: fx.Node, inputs: Sequence[Tensor], results: Sequence[Tensor]
) -> int:
    """Operations of a call on whole tensors; 0 for operators that multiply no matrices.

    Args:
        mg: the graph.
        node: one of its nodes.
        inputs: the tensors that it reads, in order.
        results: those that it gives.
    """
    count, module = mg.operator(node).flops, mg.module_of(node)
    if count is None or not results:
        return 0
    shapes = [tuple(x.shape) for x in inputs]
    if isinstance(module, PackedOperator):
        shapes.append(tuple(module.packed_shapes["weight"]))
    elif module is not None and "weight" in parameters_of(module):
        shapes.append(tuple(module.get_parameter("weight").shape))
    return count(shapes, tuple(results[0].shape))


def moves_memory(inputs: Iterable[Tensor], results: Iterable[Tensor]) -> bool:
    """Whether a call reads and writes tensors; a view gives the memory that it was given."""
    given = {storage_id(x) for x in inputs}
    return any(storage_id(x) not in given for x in results)


def reads_whole_tensors(mg: MaseGraph, node: fx.Node) -> bool:
    """Whether a call reads all of its parameters; of a table only the rows that are asked for."""
    weight = mg.operator(node).weight
    return weight is None or not weight.is_table
