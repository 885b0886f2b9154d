"""Replacement of decomposed attention by `F.scaled_dot_product_attention`."""

from __future__ import annotations

import math
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.node import map_arg

from chop.captured.runtime import ByMode
from chop.fusion.attention import Attention, Mask, match_attention
from chop.fusion.matching import argument, erase_calls, get_result, operation
from chop.ir.annotate import common_metadata
from chop.ir.graph import MaseGraph
from chop.ir.graph.rewrite import rewrite
from chop.ir.metadata import MaseMetadata


def fuse_attentions(mg: MaseGraph) -> tuple[list[str], dict[str, str]]:
    """Replaces each attention of a graph by one fused call, in place.

    Returns: the names of replaced softmaxes, and the reasons by name for the others.
    """
    return rewrite(
        mg, partial(match_attention, mg), lambda attention: _Rewriter(mg, attention).rewrite()
    )


class _Rewriter:
    """Builder of the fused call of one attention.

    Args:
        mg: graph to change.
        attention: attention to replace.
    """

    def __init__(self, mg: MaseGraph, attention: Attention) -> None:
        self.mg, self.attention = mg, attention
        self.results: dict[fx.Node, Any] = {
            node: torch.empty(info.shape, dtype=info.torch_dtype, device="meta")
            for node in mg.nodes
            if (info := get_result(node)).torch_dtype is not None
        }

    def rewrite(self) -> None:
        """Inserts the fused call and erases the replaced nodes."""
        attention, graph = self.attention, self.mg.fx_graph
        with graph.inserting_before(attention.context):
            key = self._key()
            options = {
                "attn_mask": self._mask(),
                "dropout_p": self._dropout(),
                "is_causal": attention.is_causal,
                "scale": self._scale(),
            }
            usual = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None}
            given = {name: value for name, value in options.items() if value != usual[name]}
            arguments = (attention.query, key, attention.value)
            fused = self._new(F.scaled_dot_product_attention, *arguments, **given)
        attention.context.replace_all_uses_with(fused)
        self._erase()

    def _new(self, function: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Inserts a call with metadata like the context's."""
        is_method = getattr(torch.Tensor, getattr(function, "__name__", ""), None) is function
        graph, name = self.mg.fx_graph, function.__name__
        make = graph.call_method if is_method else graph.call_function
        node = make(name if is_method else function, args, kwargs)
        context = self.attention.context.meta
        node.meta.update(context)
        known = map_arg((args, kwargs), self.results.__getitem__)
        self._note(node, function(*known[0], **known[1]))
        return node

    def _note(self, node: fx.Node, result: Any) -> None:
        self.results[node] = result
        node.meta["mase"] = MaseMetadata(node)
        node.meta["mase"].common.update(common_metadata(self.mg, node, self.results))

    def _key(self) -> fx.Node:
        """Returns the keys as (..., K, D)."""
        node = self.attention.key
        rank = len(get_result(node).shape)
        dims: Any = node.args[1:]
        is_swap = operation(self.mg, node) == "transpose" and not node.kwargs
        if is_swap and {dim % rank for dim in dims} == {rank - 2, rank - 1}:
            return node.all_input_nodes[0]
        return self._new(torch.Tensor.transpose, node, -2, -1)

    def _scale(self) -> float | None:
        """Returns the scale, or None for the kernel's own 1 / sqrt(D)."""
        usual = 1 / math.sqrt(get_result(self.attention.query).shape[-1])
        return (
            None
            if math.isclose(self.attention.scale, usual, rel_tol=1e-7)
            else self.attention.scale
        )

    def _mask(self) -> fx.Node | None:
        masks = self.attention.masks
        if not masks or self.attention.is_causal:
            return None
        if all(mask.kind != "added" and mask.fill == -math.inf for mask in masks):
            allowed = [self._allowed(mask) for mask in masks]
            return reduce(partial(self._new, torch.logical_and), allowed)
        numbers: Any = 0.0
        for mask in reversed(masks):
            numbers = self._added_mask(mask, numbers)
        dtype = get_result(self.attention.query).torch_dtype
        is_it = get_result(numbers).torch_dtype == dtype
        return numbers if is_it else self._new(torch.Tensor.to, numbers, dtype)

    def _allowed(self, mask: Mask) -> fx.Node:
        return mask.node if mask.kind == "kept" else self._new(torch.logical_not, mask.node)

    def _added_mask(self, mask: Mask, numbers: Any) -> fx.Node:
        """Returns the numbers added to the scores after one more mask, starting from 0.0.

        A fill replaces earlier numbers, because the sum of two would differ from one.
        """
        if mask.kind == "added":
            return mask.node if numbers == 0.0 else self._new(torch.add, numbers, mask.node)
        chosen = (numbers, mask.fill) if mask.kind == "kept" else (mask.fill, numbers)
        return self._new(torch.where, mask.node, *chosen)

    def _dropout(self) -> Any:
        """Returns the dropout probability: a number, or a node that depends on the mode."""
        node = self.attention.dropout
        if node is None:
            return 0.0
        module = self.mg.get_module(node)
        if module is None:
            is_on = argument(node, 2, "training", True)
            return argument(node, 1, "p", 0.5) if is_on else 0.0
        assert isinstance(module, nn.Dropout)
        if module.p == 0:
            return 0.0
        return self._by_mode(module)

    def _by_mode(self, dropout: nn.Dropout) -> fx.Node:
        node = self.mg.fx_graph.call_function(ByMode)
        node.meta.update(self.attention.context.meta)
        self.mg.replace(node, ByMode(dropout.p, 0.0).train(dropout.training))
        self._note(node, dropout.p)
        return node

    def _erase(self) -> None:
        erase_calls(self.mg, self.attention.replaced)
        for node in (self.attention.key, *(mask.node for mask in self.attention.masks)):
            self._erase_unread(node)

    def _erase_unread(self, node: fx.Node) -> None:
        """Erases a node without readers, and inputs that only it has read."""
        writes = str(node.target).endswith("_") or node.is_impure()
        if node.users or writes or node.op in ("placeholder", "call_module"):
            return
        if node not in self.mg.nodes:  # two paths lead to it
            return
        sources = node.all_input_nodes
        self.mg.fx_graph.erase_node(node)
        for source in sources:
            self._erase_unread(source)
