"""What of a quantised graph has no integer form: all of it at once, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from chop.errors import ConfigError
from chop.integer.folding import Folded
from chop.integer.masks import proven_mask
from chop.integer.walk import grid_of, is_moved
from chop.ir.graph import MaseGraph
from chop.ir.settled import operand_text
from chop.nn.integer.parameters import parameter_codes
from chop.nn.quantized import QuantCall, QuantizedOperator, leaf_operators

PARAMETERS = ("weight", "bias")


def refusals(mg: MaseGraph, folded: Folded) -> list[str]:
    """Nodes and operands without an integer form; none if the graph can be lowered."""
    return [text for node in mg.nodes for text in _of_node(mg, node, folded)]


def _of_node(mg: MaseGraph, node: fx.Node, folded: Folded) -> Iterator[str]:
    if node in folded.static or node.op in ("placeholder", "output"):
        return
    if not folded.is_float(node) or is_moved(mg, node, folded):
        return
    row, module = mg.operator(node), mg.module_of(node)
    if not isinstance(module, QuantizedOperator):
        if row.integer is None or row.is_quantizable:
            yield f"{node.name} ({row.name}, float)"
        return
    if row.integer is None:
        yield f"{node.name} ({row.name})"
        return
    for name, step in leaf_operators(module).items():
        yield from _of_operator(f"{node.target}.{name}" if name else str(node.target), step)
    mask: Any = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)
    if isinstance(mask, fx.Node):
        try:
            proven_mask(mg, mask, folded)
        except ConfigError as error:
            yield f"{node.name} ({error})"


def _of_operator(path: str, step: QuantizedOperator) -> Iterator[str]:
    for operand in (*step.operands, "data_out"):
        quantizer = step.format_of(operand)
        is_parameter = operand in PARAMETERS and not isinstance(step, QuantCall)
        if is_parameter and getattr(step, operand, None) is None:
            continue
        if quantizer.is_identity and operand == "data_out":
            continue
        if not _has_form(step, operand, is_parameter):
            yield operand_text(path, step, operand)


def _has_form(step: QuantizedOperator, operand: str, is_parameter: bool) -> bool:
    if not is_parameter:
        return grid_of(step, operand) is not None
    try:
        parameter_codes(step, operand)
    except ConfigError:
        return False
    return True
