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
        values: results of all nodes on the example; real numbers that follow inputs are meta
            tensors: of them only shapes and dtypes are kept.
        static: the nodes whose results are the same whatever the inputs of these shapes.
        reads_sizes: some of them follow the sizes of inputs.
    """

    values: Mapping[fx.Node, Any]
    static: frozenset[fx.Node]
    reads_sizes: bool

    def has_tensors(self, node: fx.Node) -> bool:
        """Whether the result is a tensor, or a sequence of them."""
        value = self.values[node]
        parts = value if isinstance(value, tuple | list) else (value,)
        return any(isinstance(part, Tensor) for part in parts)

    def is_float(self, node: fx.Node) -> bool:
        """Whether the result is a tensor of real numbers, or a sequence of them."""
        found = list(tensors_in(self.values[node])) if self.has_tensors(node) else []
        return bool(found) and all(x.is_floating_point() for x in found)

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """The shape of the result, a tensor."""
        return tuple(self.values[node].shape)


def fold(mg: MaseGraph, example: Mapping[str, Any]) -> Folded:
    """Evaluates a graph on an example, and tells what follows from shapes alone.

    Sizes, dtypes and devices do, and what is computed from them and from parameters and buffers.
    """
    values: dict[fx.Node, Any] = {}
    static: set[fx.Node] = set()
    sizes: list[Any] = []

    def visit(node: fx.Node, value: Any) -> None:
        follows_inputs = not static.issuperset(node.all_input_nodes)
        has_tensors = any(True for _ in tensors_in(value))
        if node.op in ("placeholder", "output") or (follows_inputs and has_tensors):
            is_float = isinstance(value, Tensor) and value.is_floating_point()
            values[node] = value.to("meta") if is_float else value
            return
        values[node] = value
        static.add(node)
        if follows_inputs and isinstance(value, int | tuple | list):
            sizes.append(value)

    propagate(mg.model, example, visit, with_values=True)
    return Folded(values, frozenset(static), bool(sizes))
