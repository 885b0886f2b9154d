"""Constant folding: values of a graph that depend only on shapes and parameters."""

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
    """Values of a graph for the batch size and length of an example.

    Attributes:
        values: results of all nodes on the example. Real tensors that depend on inputs are meta
            tensors, with shape and dtype only.
        static: nodes whose results do not depend on input values, for these shapes.
        reads_sizes: some static results depend on input sizes.
    """

    values: Mapping[fx.Node, Any]
    static: frozenset[fx.Node]
    reads_sizes: bool

    def has_tensors(self, node: fx.Node) -> bool:
        """Returns whether the result is a tensor or a sequence of tensors."""
        value = self.values[node]
        parts = value if isinstance(value, tuple | list) else (value,)
        return any(isinstance(part, Tensor) for part in parts)

    def is_float(self, node: fx.Node) -> bool:
        """Returns whether the result is a floating-point tensor, or a sequence of them."""
        tensors = list(tensors_in(self.values[node])) if self.has_tensors(node) else []
        return bool(tensors) and all(x.is_floating_point() for x in tensors)

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """Returns the shape of a tensor result."""
        return tuple(self.values[node].shape)


def fold(mg: MaseGraph, example: Mapping[str, Any]) -> Folded:
    """Evaluates a graph on an example and determines its constants.

    Constants are sizes, dtypes, devices, parameters, buffers, and results computed from them.
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
    """Removes each `masked_fill` that changes no code; returns whether there was one.

    Such a fill has an empty mask for the example's shapes. Or it fills NaN, whose code is 0, after
    an attention with fully masked queries, whose context already has the code 0.
    """
    fills = [node for node in mg.nodes if _fills_nothing(mg, node, folded)]
    for node in fills:
        filled, mask = node.args[:2]
        assert isinstance(filled, fx.Node)
        node.replace_all_uses_with(filled)
        mg.fx_graph.erase_node(node)
        while isinstance(mask, fx.Node) and not mask.users and mask.op != "placeholder":
            source = mask.args[0] if mask.args else None
            mg.fx_graph.erase_node(mask)
            mask = source
    return bool(fills)


def _fills_nothing(mg: MaseGraph, node: fx.Node, folded: Folded) -> bool:
    # In-place variants were replaced by `thread_writes` before.
    if mg.operator(node).name != "masked_fill" or len(node.args) != 3:
        return False
    filled, mask, value = node.args
    if not (isinstance(filled, fx.Node) and isinstance(mask, fx.Node)):
        return False
    if mask in folded.static:
        return not folded.values[mask].any()
    is_attention = mg.operator(filled).name == "scaled_dot_product_attention"
    return is_attention and isinstance(value, float) and math.isnan(value)
