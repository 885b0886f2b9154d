"""Decomposed attention patterns: product, scale, mask, softmax, dropout, product."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from chop.fusion.causal_masks import causal, causal_when_added
from chop.fusion.matching import (
    SURE_TO_HIDE,
    argument,
    check_free,
    get_result,
    is_cast,
    is_number,
    operation,
)
from chop.ir.graph import MaseGraph
from chop.ir.graph.rewrite import Match, NotRewritableError
from chop.ir.ops import Kind
from chop.ir.ops.flops import matmul


@dataclass(frozen=True)
class Mask:
    """Attention mask: a step that hides scores.

    Attributes:
        node: node of the numbers to add or the booleans.
        kind: `added` for numbers; `kept` or `masked` for scores at true booleans.
        fill: value of masked scores, -inf or at most `SURE_TO_HIDE`.
    """

    node: fx.Node
    kind: str
    fill: float = -math.inf


@dataclass
class Attention:
    """softmax(scale query key^T + masks) value, as nodes.

    Attributes:
        softmax: node that computes the attention weights.
        context: last product.
        query: (..., Q, D).
        key: transposed, (..., D, K).
        value: (..., K, D).
        scale: factor of the scores.
        masks: masks after the scale, last one first.
        is_causal: true if the only mask is causal.
        dropout: node that drops attention weights, or None.
        replaced: nodes that the fused call replaces, each before its inputs.
    """

    softmax: fx.Node
    context: fx.Node
    query: fx.Node
    key: fx.Node
    value: fx.Node
    scale: float = 1.0
    masks: list[Mask] = field(default_factory=list)
    is_causal: bool = False
    dropout: fx.Node | None = None
    replaced: list[fx.Node] = field(default_factory=list)


def match_attention(mg: MaseGraph, softmax: fx.Node) -> Match[Attention] | None:
    """Returns the attention around a softmax between two products, or None.

    Raises:
        NotRewritableError: if it cannot be one fused call.
    """
    if operation(mg, softmax) != "softmax":
        return None
    match = _read(mg, softmax)
    return None if match is None else Match(softmax.name, match)


def _read(mg: MaseGraph, softmax: fx.Node) -> Attention | None:
    after, context, dropout = _to_the_value(mg, softmax)
    if context is None:
        return None
    before, product, scale, masks = _to_the_query(mg, softmax)
    if product is None:
        return None
    replaced = [context, *reversed(after), softmax, *before, product]
    for node in replaced:
        check_free(mg, node)
    for node in replaced[1:]:
        if len(node.users) > 1:
            what = "its weights are" if node in (softmax, *after) else f"'{node.name}' is"
            raise NotRewritableError(f"{what} read elsewhere too")
    _check_softmax(mg, softmax)
    query, key, value = _operand(product, 0), _operand(product, 1), _operand(context, 1)
    if value in replaced:
        raise NotRewritableError("its values equal its weights")
    attention = Attention(
        softmax, context, query, key, value, scale, masks, False, dropout, replaced
    )
    _check_operands(attention)
    _check_masks(mg, attention, product)
    return attention


def _to_the_value(
    mg: MaseGraph, softmax: fx.Node
) -> tuple[list[fx.Node], fx.Node | None, fx.Node | None]:
    """Follows a softmax to the product with the values: (steps, product, dropout)."""
    steps: list[fx.Node] = []
    node, dropout = softmax, None
    while True:
        readers = list(node.users)
        products = [user for user in readers if _is_weights_of(mg, user, node)]
        if products:
            return steps, products[0], dropout
        follower = next((user for user in readers if _passes_weights(mg, user)), None)
        if follower is None:
            return steps, None, dropout
        if operation(mg, follower) == "dropout":
            if dropout is not None:
                raise NotRewritableError("it has two dropouts of its weights")
            if not _drops_single_weights(mg, follower):
                raise NotRewritableError("its dropout drops whole channels")
            dropout = follower
        steps.append(follower)
        node = follower


def _is_weights_of(mg: MaseGraph, product: fx.Node, node: fx.Node) -> bool:
    return _is_product(mg, product) and product.args[:1] == (node,)


def _is_product(mg: MaseGraph, node: fx.Node) -> bool:
    """Returns true for a product of two activations."""
    return mg.operator(node).flops is matmul


def _drops_single_weights(mg: MaseGraph, node: fx.Node) -> bool:
    return isinstance(mg.get_module(node), nn.Dropout) or node.target in (F.dropout, torch.dropout)


def _passes_weights(mg: MaseGraph, node: fx.Node) -> bool:
    return operation(mg, node) == "dropout" or is_cast(mg, node)


def _to_the_query(
    mg: MaseGraph, softmax: fx.Node
) -> tuple[list[fx.Node], fx.Node | None, float, list[Mask]]:
    """Traces a softmax back to the first product: (steps, product, scale, masks)."""
    steps: list[fx.Node] = []
    masks: list[Mask] = []
    scale, scaled = 1.0, False
    node: Any = softmax.args[0] if softmax.args else softmax.kwargs.get("input")
    while isinstance(node, fx.Node):
        if _is_product(mg, node):
            return steps, node, scale, masks
        factor = _factor(mg, node)
        mask = None if factor is not None else _mask(mg, node)
        steps.append(node)
        if factor is not None:
            node, scale, scaled = factor[0], scale * factor[1], True
        elif mask is not None:
            if scaled:
                raise NotRewritableError("its scores are masked before they are scaled")
            node = mask[0]
            masks.append(mask[1])
        elif is_cast(mg, node):
            node = node.args[0]
        else:
            break
    return steps, None, scale, masks


def _factor(mg: MaseGraph, node: fx.Node) -> tuple[Any, float] | None:
    """Returns (scores, factor) of a step that scales by a number."""
    if len(node.args) != 2 or node.kwargs:
        return None
    name, (first, second) = operation(mg, node), node.args
    if name == "div" and is_number(second) and second:
        return first, 1 / float(second)  # type: ignore[arg-type]
    if name == "mul" and (is_number(first) or is_number(second)):
        scores, factor = (first, second) if is_number(second) else (second, first)
        return scores, float(factor)  # type: ignore[arg-type]
    return None


def _mask(mg: MaseGraph, node: fx.Node) -> tuple[Any, Mask] | None:
    """Returns (scores, mask) of a step that hides scores."""
    name = operation(mg, node)
    if name == "add" and len(node.args) == 2 and not node.kwargs:
        first, second = node.args
        scores = [x for x in (first, second) if _leads_to_a_product(mg, x)]
        if len(scores) == 1:
            added = second if scores[0] is first else first
            return (scores[0], Mask(added, "added")) if isinstance(added, fx.Node) else None
    if name == "masked_fill":
        masked, fill = argument(node, 1, "mask"), argument(node, 2, "value")
        return argument(node, 0, "input"), Mask(masked, "masked", _fill(fill))
    if name == "where" and len(node.args) == 3:
        condition, chosen, other = node.args
        if isinstance(condition, fx.Node) and isinstance(chosen, fx.Node):
            return chosen, Mask(condition, "kept", _fill(other))
        if isinstance(condition, fx.Node) and isinstance(other, fx.Node):
            return other, Mask(condition, "masked", _fill(chosen))
    return None


def _fill(value: Any) -> float:
    if not is_number(value):
        raise NotRewritableError("its scores are filled with a tensor")
    if value > SURE_TO_HIDE:
        raise NotRewritableError(f"its scores are filled with {value}, which may not mask them")
    return float(value)


def _leads_to_a_product(mg: MaseGraph, node: Any) -> bool:
    while isinstance(node, fx.Node):
        factor = _factor(mg, node)
        if _is_product(mg, node):
            return True
        is_step = mg.operator(node).kind is Kind.ARITHMETIC and not node.kwargs
        if not (factor or is_step or is_cast(mg, node)):
            return False
        node = factor[0] if factor else node.args[0]
    return False


def _check_softmax(mg: MaseGraph, node: fx.Node) -> None:
    module = mg.get_module(node)
    rank = len(get_result(node).shape)
    dim = module.dim if isinstance(module, nn.Softmax) else argument(node, 1, "dim")
    if dim not in (-1, rank - 1):
        raise NotRewritableError("its softmax is not over the last axis")
    if len(node.args) > 2 or node.kwargs.get("dtype") not in (None, torch.float32):
        raise NotRewritableError("its softmax is called with another dtype")


def _operand(product: fx.Node, position: int) -> fx.Node:
    factor = argument(product, position, ("input", "other")[position], product.kwargs.get("mat2"))
    if not isinstance(factor, fx.Node):
        raise NotRewritableError("a factor of its products is not a node")
    return factor


def _check_operands(attention: Attention) -> None:
    query, key, value = (
        get_result(node) for node in (attention.query, attention.key, attention.value)
    )
    if len(query.shape) not in (3, 4):
        raise NotRewritableError(f"its queries have {len(query.shape)} axes, not 3 or 4")
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        raise NotRewritableError("queries, keys and values have different batches or heads")
    if not query.torch_dtype == key.torch_dtype == value.torch_dtype:
        raise NotRewritableError("queries, keys and values have different dtypes")


def _check_masks(mg: MaseGraph, attention: Attention, product: fx.Node) -> None:
    scores = get_result(product).shape
    for mask in attention.masks:
        info = get_result(mask.node)
        if not _broadcasts(info.shape, scores):
            raise NotRewritableError(
                f"mask '{mask.node.name}' does not have the shape of the scores"
            )
        if (mask.kind == "added") != info.is_floating:
            raise NotRewritableError(f"mask '{mask.node.name}' has dtype {info.torch_dtype}")
    if len(attention.masks) == 1 and scores[-1] == scores[-2]:
        mask = attention.masks[0]
        if get_result(mask.node).shape[-2:] == scores[-2:] and _is_causal(mg, mask):
            attention.is_causal = True


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, whole) for size, whole in pairs)


def _is_causal(mg: MaseGraph, mask: Mask) -> bool:
    if mask.kind == "added":
        return causal_when_added(mg, mask.node)
    return causal(mg, mask.node, is_allowed=mask.kind == "kept")
