"""Finds graph nodes that compute or read attention scores and may see a mask."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from chop.ir.graph import MaseGraph
from chop.ir.ops import Kind, Operator
from chop.nn.quantized import QuantScaledDotProductAttention

NEVER_MASKED = frozenset({Kind.PRODUCT, Kind.NORM, Kind.ACTIVATION, Kind.POOLING, Kind.LOSS})
MASK = 3
"""The position of an attention's mask."""


def masked_nodes(mg: MaseGraph) -> set[fx.Node]:
    """Arithmetic on scores and softmaxes that may read masked scores.

    Scores are what reaches a softmax, or the mask of an attention, by arithmetic, layouts, casts
    and dropout. Products, norms and activations give none that are masked; inputs, buffers and
    operators that are not known may.
    """
    rows = {node: mg.operator(node) for node in mg.nodes}
    maybe = maybe_masked(rows)
    scores = _scores(rows)
    return {
        node
        for node, row in rows.items()
        if (row.reads_scores or (row.kind is Kind.ARITHMETIC and node in scores))
        and any(given in maybe for given in node.all_input_nodes)
    }


def maybe_masked(rows: Mapping[fx.Node, Operator]) -> set[fx.Node]:
    """Nodes whose results may be masked scores, or masks.

    Args:
        rows: the operators of a graph, in order.
    """
    maybe: set[fx.Node] = set()
    for node, row in rows.items():
        if _may_be_masked(row, any(given in maybe for given in node.all_input_nodes)):
            maybe.add(node)
    return maybe


def _may_be_masked(row: Operator, reads_masked: bool) -> bool:
    if row.makes_masks:
        return True
    if row.kind in NEVER_MASKED:
        return False
    return reads_masked if _hands_on(row) else True


def _hands_on(row: Operator) -> bool:
    """Returns whether scores remain scores behind an operator."""
    return row.kind in (Kind.ARITHMETIC, Kind.DROPOUT) or bool(row.layout)


def _scores(rows: dict[fx.Node, Operator]) -> set[fx.Node]:
    """Nodes whose results are read as scores, or are added to some."""
    nodes: set[fx.Node] = set()
    for node, row in reversed(rows.items()):
        if row.reads_scores or (node in nodes and _hands_on(row)):
            nodes.update(node.all_input_nodes)
        elif row.twin is QuantScaledDotProductAttention:
            mask = node.args[MASK] if len(node.args) > MASK else node.kwargs.get("attn_mask")
            nodes.update({mask} if isinstance(mask, fx.Node) else ())
    return nodes
