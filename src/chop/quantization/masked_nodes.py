"""Detection of graph nodes that compute or read attention scores and may see a mask."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.ops import Kind, Operator
from chop.ir.ops import dimensions as d
from chop.nn.quantized import QuantScaledDotProductAttention
from chop.nn.quantized.scores import LOWEST_SCORE

WITHOUT_ROW = frozenset(
    ["isinf", "isnan", "isfinite", "long", "int", "bool", "short", "char", "byte"]
)
"""Comparisons and casts to integers that are not in the operator table."""
NEVER_MASKED = frozenset({Kind.PRODUCT, Kind.NORM, Kind.ACTIVATION, Kind.POOLING, Kind.LOSS})
MASK = 3
"""Position of the mask among the arguments of an attention."""


def masked_nodes(mg: MaseGraph) -> set[fx.Node]:
    """Finds arithmetic on scores and softmaxes that may read masked scores.

    Scores are values that reach a softmax, or the mask of an attention, through arithmetic, layout
    changes, casts and dropout. Results of products, norms and activations are unmasked; inputs,
    buffers and results of unknown operators may be masked.
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


def mask_arithmetic(mg: MaseGraph) -> set[fx.Node]:
    """Finds arithmetic and layout changes of numbers that become masks, positions or decisions.

    Their results are only compared, cast to integers or booleans, or multiplied by a very low
    number that is added to scores. Rounding them could mask other tokens; a format without a zero
    cannot represent a mask of zeros.
    """
    rows = {node: mg.operator(node) for node in mg.nodes}
    scores, nodes = _scores(rows), set[fx.Node]()
    for node, row in reversed(rows.items()):
        if not (row.kind is Kind.ARITHMETIC or row.layout or row.name == "clone"):
            continue
        is_low = node in scores and _has_low_factor(row, node)
        readers = [user for user in node.users if rows[user].follow is not d.read_size]
        if is_low or (readers and all(_decides(rows[x], x) or x in nodes for x in readers)):
            nodes.add(node)
    return nodes


def _has_low_factor(row: Operator, node: fx.Node) -> bool:
    """Returns true if a factor of a product turns a mask of 0 and 1 into one that hides scores."""
    factors = node.args if row.name == "mul" else ()
    return any(isinstance(x, int | float) and abs(x) >= -LOWEST_SCORE for x in factors)


def _decides(row: Operator, node: fx.Node) -> bool:
    """Returns true if a node maps numbers to booleans or integers element by element."""
    if row.is_comparison or row.name in WITHOUT_ROW:
        return True
    results = node_metadata(node).common.results.values() if row.layout == "cast" else ()
    return bool(results) and not any(info.is_floating for info in results)


def maybe_masked(rows: Mapping[fx.Node, Operator]) -> set[fx.Node]:
    """Returns nodes whose results may be masked scores or masks."""
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
    """Returns true if an operator maps scores to scores."""
    return row.kind in (Kind.ARITHMETIC, Kind.DROPOUT) or bool(row.layout)


def _scores(rows: dict[fx.Node, Operator]) -> set[fx.Node]:
    """Returns nodes whose results are read as scores or added to scores."""
    nodes: set[fx.Node] = set()
    for node, row in reversed(rows.items()):
        if row.reads_scores or (node in nodes and _hands_on(row)):
            nodes.update(node.all_input_nodes)
        elif row.twin is QuantScaledDotProductAttention:
            mask = node.args[MASK] if len(node.args) > MASK else node.kwargs.get("attn_mask")
            nodes.update({mask} if isinstance(mask, fx.Node) else ())
        elif row.name == "baddbmm" and node in nodes and isinstance(node.args[0], fx.Node):
            nodes.add(node.args[0])
    return nodes
