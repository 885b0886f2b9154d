"""Values of the quantized graph that an integer graph computes without codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from chop.integer.builder import GraphBuilder
from chop.integer.calls import is_moved
from chop.integer.folding import Folded
from chop.integer.masks import proven_mask
from chop.ir.graph import MaseGraph
from chop.ir.ops import Kind
from chop.nn.integer import IntegerBatchNorm
from chop.nn.integer.mask import KeptKeys
from chop.nn.quantized import QuantizedOperator


class UncodedValues:
    """Inputs, integers such as token ids, masks, and arguments, in the new graph.

    Args:
        mg: the quantized graph.
        folded: its values on the example.
        builder: builder of the new graph.
    Attributes:
        inputs: nodes with the inputs of the model, and with those that the host scales.
    """

    def __init__(self, mg: MaseGraph, folded: Folded, builder: GraphBuilder) -> None:
        self.mg, self.folded, self.builder = mg, folded, builder
        self.inputs: dict[fx.Node, fx.Node] = {}
        self._others: dict[fx.Node, fx.Node] = {}

    def add_inputs(self) -> None:
        """Adds the inputs of the old graph."""
        for node in self.mg.nodes:
            if node.op == "placeholder":
                self.inputs[node] = self.builder.placeholder(node)

    def whole_numbers(self, node: fx.Node) -> fx.Node:
        """Returns integer values, such as token ids, unchanged from the quantized graph."""
        if node in self.inputs:
            return self.inputs[node]
        if node not in self._others:
            if node in self.folded.static:
                made = self.builder.constant(node, self.folded.values[node].clone())
            else:
                made = self.move(node, self.whole_numbers)
            self._others[node] = made
        return self._others[node]

    def visible_keys(
        self, node: fx.Node, mask: Any, is_causal: bool, sizes: tuple[int, int]
    ) -> fx.Node | None:
        """Returns the boolean mask of an attention; None if no key is masked.

        Args:
            node: the attention.
            mask: its mask argument, a node or None.
            is_causal: its argument.
            sizes: numbers of queries and of keys.
        """
        source = None
        if isinstance(mask, fx.Node):
            proven = proven_mask(self.mg, mask, self.folded)
            source, is_causal = proven.source, proven.is_causal
        if source is None and not is_causal:
            return None
        like = mask if isinstance(mask, fx.Node) else node
        if like not in self._others:
            inputs = () if source is None else (self.inputs[source],)
            operator = KeptKeys(*sizes, is_causal)
            self._others[like] = self.builder.call_module(like, operator, inputs, "_kept")
        return self._others[like]

    def argument(self, node: fx.Node) -> Any:
        """Returns an argument of a layout operator: integers, or a number of the example."""
        if self.folded.has_tensors(node):
            return self.whole_numbers(node)
        return self.folded.values[node]

    def unrounded_input(self, node: fx.Node) -> fx.Node | None:
        """Returns a real graph input, possibly moved by layout operators; None for other nodes."""
        if node in self.inputs or node in self.folded.static:
            return self.inputs.get(node)
        if not is_moved(self.mg, node, self.folded):
            return None
        floats = [given for given in node.all_input_nodes if self.folded.is_float(given)]
        inputs = {given: self.unrounded_input(given) for given in floats}
        if None in inputs.values():
            return None
        return self.move(node, lambda given: inputs.get(given) or self.argument(given))

    def scaled_input(self, node: fx.Node) -> fx.Node | None:
        """Returns a real graph input, possibly scaled by float batch norms; None for other nodes.

        The host computes such norms ahead of the encoder.
        """
        is_norm = self.mg.operator(node).integer is IntegerBatchNorm
        is_float = is_norm and not isinstance(self.mg.get_module(node), QuantizedOperator)
        if is_float and node not in self.inputs:
            (given,) = node.all_input_nodes
            source = self.scaled_input(given) or self.unrounded_input(given)
            if source is not None:
                self.inputs[node] = self.builder.again(node, lambda _: source)
        return self.inputs.get(node)

    def move(self, node: fx.Node, read: Callable[[fx.Node], Any]) -> fx.Node:
        """Adds the layout operator `node` with inputs mapped by `read`."""
        row = self.mg.operator(node)
        if row.kind is Kind.DROPOUT or row.layout == "cast":
            source: fx.Node = read(node.all_input_nodes[0])
            return source

        def argument(given: fx.Node) -> Any:
            return read(given) if self.folded.has_tensors(given) else self.folded.values[given]

        return self.builder.again(node, argument)
