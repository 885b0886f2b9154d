"""Integer attention in three steps: query-key products, softmax, and products with values."""

from __future__ import annotations

import inspect
import math
from typing import Any

from torch import Tensor, fx

from chop.errors import ConfigError
from chop.integer.grids import AnyGrid, grid_text, requantizer
from chop.integer.lowering import GraphLowering
from chop.integer.steps import Attended, Codes, Step
from chop.nn.integer import (
    BlockGrid,
    IntegerCachedMatmul,
    IntegerMatmul,
    IntegerScale,
    IntegerSoftmax,
)
from chop.nn.quantized import QuantizedOperator, QuantScaledDotProductAttention

SETTINGS = ("dropout_p", "is_causal", "scale", "enable_gqa")
"""Non-tensor arguments, which a graph may compute, such as from its training mode."""


def lower_attention(
    lowering: GraphLowering, node: fx.Node, module: QuantScaledDotProductAttention
) -> Codes:
    """Lowers an attention, in which each step has its own formats.

    The scale is a float32 constant. Its significand multiplies the products, its exponent becomes
    part of their step, and the softmax's format rounds once.

    Raises:
        ConfigError: if it has dropout.
    """
    call = inspect.signature(module.forward).bind(*node.args, **node.kwargs)
    call.apply_defaults()
    values = lowering.whole.values
    given: dict[str, Any] = {
        name: values[given] if isinstance(given, fx.Node) and name in SETTINGS else given
        for name, given in call.arguments.items()
    }
    if given["dropout_p"]:
        raise ConfigError(
            f"expected dropout_p=0 in evaluation, got {given['dropout_p']}; pass "
            f"{given['dropout_p']} if self.training else 0.0"
        )
    query, key, value = given["query"], given["key"], given["value"]
    groups = lowering.folded.shape(query)[-3] // lowering.folded.shape(key)[-3]
    groups = groups if given["enable_gqa"] else 1
    sizes = lowering.whole.shape(query)[-2], lowering.whole.shape(key)[-2]
    mask = lowering.visible_keys(node, given["attn_mask"], given["is_causal"], sizes)
    scores = _scores(lowering, node, module, query, key, groups, given["scale"], mask)
    weights = _weights(lowering, node, module, scores, mask, sizes[1])
    return _context(lowering, node, module, weights, value, groups, sizes[1])


def _required(lowering: GraphLowering, operator: QuantizedOperator, operand: str) -> AnyGrid:
    grid = lowering.grids.of(operator, operand)
    assert grid is not None
    return grid


def _product(
    lowering: GraphLowering, node: fx.Node, a: Codes, rows: Attended, terms: int, is_key: bool
) -> Codes:
    """Returns the product with transposed keys, or with values, of `terms` products for a sum."""
    suffix, builder, b = "_product" if is_key else "_context", lowering.builder, rows.inputs[0]
    if rows.length:
        cached = IntegerCachedMatmul(a.proven, b.proven, terms, rows.length, rows.groups, is_key)
        return lowering.call(node, cached, (a, *rows.inputs), suffix)
    factor = b.node
    if rows.groups > 1:
        factor = builder.call_method(node, "repeat_interleave", factor, rows.groups, -3)
    if is_key:
        factor = builder.call_method(node, "transpose", factor, -2, -1)
    operator = IntegerMatmul(a.proven, b.proven, terms)
    return lowering.call(node, operator, (a, Codes(factor, b.edge)), suffix)


def _scores(
    lowering: GraphLowering,
    node: fx.Node,
    module: QuantScaledDotProductAttention,
    query: fx.Node,
    key: fx.Node,
    groups: int,
    scale: float | None,
    visible_keys: fx.Node | None,
) -> Codes:
    """Returns the scores as softmax input codes. Shared block exponents ignore masked scores."""
    grid, size = _required(lowering, module.product, "data_in"), lowering.folded.shape(query)[-1]
    factor = 1 / math.sqrt(size) if scale is None else scale
    q = lowering.coded(query, grid)
    keys = lowering.attended(key, grid, groups)
    codes = _product(lowering, node, q, keys, size, True)
    scaled = IntegerScale(codes.proven, factor)
    if scaled.factor == 1:
        codes = Codes(codes.node, scaled.out)
    else:
        codes = lowering.call(node, scaled, (codes,), "_scaled")

    def reference(queries: Tensor, *values: Tensor) -> Tensor:
        products: Tensor = module.product(queries, keys.rows(*values[: len(keys.inputs)]))
        scores = products * factor
        return scores.masked_fill(~values[-1], 0) if mask else scores

    scores = _required(lowering, module.softmax, "data_in")
    # Shared exponents depend only on visible scores. Without them each score is rounded by itself.
    follows = isinstance(scores, BlockGrid) and scores.lowest < scores.highest
    mask = (Codes(visible_keys, None),) if visible_keys is not None and follows else ()
    inputs = (q, *keys.inputs, *mask)
    step = Step(f"{node.name}.product", "matmul", inputs, codes, reference, lowering.dtype(node))
    return _rounded(lowering, node, step, scores, mask)


def _weights(
    lowering: GraphLowering,
    node: fx.Node,
    module: QuantScaledDotProductAttention,
    scores: Codes,
    visible_keys: fx.Node | None,
    keys: int,
) -> Codes:
    """Returns the attention weights as input codes of the product with values."""
    softmax = IntegerSoftmax(scores.proven, keys, -1, lowering.options)
    inputs = (scores,) if visible_keys is None else (scores, Codes(visible_keys, None))
    codes = lowering.call(node, softmax, inputs, "_softmax")

    def reference(scores: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            result: Tensor = module.softmax(scores, None)
            return result
        added = scores.new_zeros(()).masked_fill(~mask, -math.inf)
        masked: Tensor = module.softmax(scores, added, ~mask)
        return masked

    step = Step(f"{node.name}.softmax", "softmax", inputs, codes, reference, lowering.dtype(node))
    return _rounded(lowering, node, step, _required(lowering, module.context, "weight"))


def _context(
    lowering: GraphLowering,
    node: fx.Node,
    module: QuantScaledDotProductAttention,
    weights: Codes,
    value: fx.Node,
    groups: int,
    keys: int,
) -> Codes:
    rows = lowering.attended(value, _required(lowering, module.context, "data_in"), groups)
    codes, name = _product(lowering, node, weights, rows, keys, False), f"{node.name}.context"

    def reference(weights: Tensor, *values: Tensor) -> Any:
        return module.context(weights, rows.rows(*values))

    inputs = (weights, *rows.inputs)
    return lowering.note(node, Step(name, "matmul", inputs, codes, reference, lowering.dtype(node)))


def _rounded(
    lowering: GraphLowering,
    node: fx.Node,
    step: Step,
    grid: AnyGrid,
    mask: tuple[Codes, ...] = (),
) -> Codes:
    """Requantizes the result of a step, optionally under a mask, for the next step."""
    suffix = f"{step.result.node.name.removeprefix(node.name)}_to_{grid_text(grid)}"
    requantize = requantizer(step.result.proven, grid)
    rounded = lowering.call(node, requantize, (step.result, *mask), suffix)
    step.readers.append((rounded.node, grid))
    lowering.steps.append(step)
    return rounded
