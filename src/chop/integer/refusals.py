"""Check for nodes of a graph without an integer form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, fx

from chop.errors import ConfigError
from chop.integer.calls import bind, is_lookup, is_moved
from chop.integer.folding import Folded
from chop.integer.grids import Grids
from chop.integer.masks import demanded_nodes, mask_argument, proven_mask
from chop.integer.suggestions import Refusal
from chop.ir.graph import MaseGraph
from chop.ir.ops import Kind
from chop.ir.settled import operand_text
from chop.nn.integer import IntegerPReLU
from chop.nn.integer.parameters import integer_parameter
from chop.nn.quantized import (
    QuantCall,
    QuantizedOperator,
    QuantScaledDotProductAttention,
    leaf_operators,
)
from chop.nn.quantized.scores import LOWEST_SCORE

PARAMETERS = frozenset({"weight", "bias"})


def refusals(mg: MaseGraph, folded: Folded, grids: Grids) -> list[Refusal]:
    """Returns the nodes and operands without an integer form; none if the graph can be lowered."""
    demanded = demanded_nodes(mg)
    computed = [
        node
        for node in mg.nodes
        if node in demanded - folded.static
        and node.op not in ("placeholder", "output")
        and folded.has_tensors(node)
        and not is_moved(mg, node, folded)
    ]
    active = [
        Refusal(node, f"{node.name} (dropout with training=True)")
        for node in mg.nodes
        if node in demanded and _is_active_dropout(mg, node)
    ]
    return active + [
        Refusal(node, text) for node in computed for text in _refuse_node(mg, node, folded, grids)
    ]


def _is_active_dropout(mg: MaseGraph, node: fx.Node) -> bool:
    """Returns whether a functional dropout is active in any mode, by its arguments."""
    if mg.operator(node).kind is not Kind.DROPOUT or mg.get_module(node) is not None:
        return False
    given: dict[str, Any] = (
        dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
    )
    return bool(given.get("p", 0.5)) and bool(given.get("training", given.get("train", True)))


def _refuse_node(mg: MaseGraph, node: fx.Node, folded: Folded, grids: Grids) -> Iterator[str]:
    row, module = mg.operator(node), mg.get_module(node)
    if not folded.is_float(node):
        yield f"{node.name} ({row.name} of integers)"
        return
    if not isinstance(module, QuantizedOperator):
        if row.integer is None or (row.is_quantizable and not row.integer.reads_exact):
            yield f"{node.name} ({row.name}, float)"
        elif row.integer is IntegerPReLU and module is None:
            yield f"{node.name} ({row.name} with parameters that no module owns)"
        return
    if row.integer is None and not isinstance(module, QuantScaledDotProductAttention):
        yield f"{node.name} ({row.name})"
        return
    if isinstance(module, QuantCall):
        if not PARAMETERS.isdisjoint(module.arguments):
            yield f"{node.name} ({row.name} with parameters that no module owns)"
            return
        try:
            bound = bind(mg, node, folded)
        except ConfigError as error:
            yield f"{node.name} ({error})"
            return
        if len(bound.inputs) == 1 and is_lookup(mg, node, folded):
            # The format of a number is not used.
            operands = (*filter(None, bound.operands), "data_out")
            yield from _refuse_operator(str(node.target), module, grids, operands)
            return
        if module.meets_masks and any(_is_mask(given, folded) for given in node.all_input_nodes):
            yield f"{node.name} ({row.name} of a mask)"
            return
    for name, step in leaf_operators(module).items():
        path = f"{node.target}.{name}" if name else str(node.target)
        if row.integer is None or not row.integer.reads_exact:
            yield from _refuse_operator(path, step, grids)
        elif not step.operand_format("data_in").is_identity:
            # The parameters of such operators need no grid.
            yield from _refuse_operator(path, step, grids, ("data_in", "data_out"))
    mask = mask_argument(mg, node)
    if mask is not None:
        try:
            proven_mask(mg, mask, folded)
        except ConfigError as error:
            yield f"{node.name} ({error})"


def _is_mask(node: fx.Node, folded: Folded) -> bool:
    """Returns whether a node is a constant with masked scores, which codes would saturate."""
    value = folded.values[node]
    if node not in folded.static or not folded.is_float(node) or not isinstance(value, Tensor):
        return False
    return bool((value.abs() >= -LOWEST_SCORE).any())


def _refuse_operator(
    path: str, step: QuantizedOperator, grids: Grids, operands: Sequence[str] = ()
) -> Iterator[str]:
    for operand in operands or (*step.operands, "data_out"):
        quantizer = step.operand_format(operand)
        is_parameter = operand in PARAMETERS and not isinstance(step, QuantCall)
        if is_parameter and getattr(step, operand, None) is None:
            continue
        if quantizer.is_identity and operand == "data_out":
            continue
        if not _has_form(step, operand, is_parameter, grids):
            yield operand_text(path, step, operand)


def _has_form(step: QuantizedOperator, operand: str, is_parameter: bool, grids: Grids) -> bool:
    if not is_parameter:
        return grids.of(step, operand) is not None
    try:
        integer_parameter(step, operand)
    except ConfigError:
        return False
    return True
