"""Constant folding: what a graph computes from shapes and parameters alone, by evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from chop.ir.annotate import tensors_in
from chop.ir.graph import MaseGraph
from chop.ir.propagate import propagate


@dataclass(frozen=True)
class Folded:
    """Values of a graph at the batch and length of an example.

    Attributes:
        values: results of all nodes on the example.
        static: the nodes whose results are the same whatever the inputs of these shapes.
        reads_sizes: some of them follow the sizes of inputs.
    """

    values: Mapping[fx.Node, Any]
    static: frozenset[fx.Node]
    reads_sizes: bool

    def is_float(self, node: fx.Node) -> bool:
        """Whether the result is a tensor of real numbers."""
        value = self.values[node]
        return isinstance(value, Tensor) and value.is_floating_point()

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """The shape of the result, a tensor."""
        return tuple(self.values[node].shape)


def fold(mg: MaseGraph, example: Mapping[str, Any]) -> Folded:
    """Evaluates a graph on an example, and tells what follows from shapes alone.

    Sizes, dtypes and devices do, and what is computed from them and from parameters and buffers.
    """
    values: dict[fx.Node, Any] = {}
    propagate(mg.model, example, values.__setitem__, with_values=True)
    static: set[fx.Node] = set()
    reads_sizes = False
    for node in mg.nodes:
        if node.op in ("placeholder", "output"):
            continue
        follows_inputs = not static.issuperset(node.all_input_nodes)
        if follows_inputs and any(True for _ in tensors_in(values[node])):
            continue
        static.add(node)
        reads_sizes |= follows_inputs and not _is_attribute(values[node])
    return Folded(values, frozenset(static), reads_sizes)


def _is_attribute(value: Any) -> bool:
    """Whether a value is no size: a dtype, a device."""
    return not isinstance(value, int | tuple | list)
