"""Constant folding: what a graph computes from shapes and parameters alone, by evaluation."""

from __future__ import annotations

import math
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


def drop_empty_fills(mg: MaseGraph, folded: Folded) -> bool:
    """Takes out each `masked_fill` that changes no code; True if there was one.

    It fills nothing on the example's shapes; or it fills NaN, whose code is 0, where an attention
    has a query from which every key is hidden, whose context has the code 0 already.
    """
    found = [node for node in mg.nodes if _fills_nothing(mg, node, folded)]
    for node in found:
        filled, mask = node.args[:2]
        assert isinstance(filled, fx.Node)
        node.replace_all_uses_with(filled)
        mg.fx_graph.erase_node(node)
        while isinstance(mask, fx.Node) and not mask.users and mask.op != "placeholder":
            source = mask.args[0] if mask.args else None
            mg.fx_graph.erase_node(mask)
            mask = source
    return bool(found)


def _fills_nothing(mg: MaseGraph, node: fx.Node, folded: Folded) -> bool:
    # What writes in place has become a value before.
    if mg.operator(node).name != "masked_fill" or len(node.args) != 3:
        return False
    filled, mask, value = node.args
    if not (isinstance(filled, fx.Node) and isinstance(mask, fx.Node)):
        return False
    if mask in folded.static:
        return not folded.values[mask].any()
    is_attention = mg.operator(filled).name == "scaled_dot_product_attention"
    return is_attention and isinstance(value, float) and math.isnan(value)
