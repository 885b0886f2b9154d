"""Replacement of the operators of a graph by their quantized twins."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from chop.capture.targets import mutates_input
from chop.formats import QuantSpec
from chop.ir.annotate import record_formats
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantCall, QuantizedOperator


def quantize_nodes(mg: MaseGraph, chosen: Mapping[fx.Node, QuantSpec]) -> None:
    """Quantizes the chosen nodes; the graph and their metadata are changed.

    Calls of one module share its twin.
    """
    twins: dict[str, QuantizedOperator] = {}
    for node, spec in chosen.items():
        # A module that several nodes call is replaced once.
        twin = twins.get(str(node.target)) if node.op == "call_module" else None
        twin = twin or quantized_twin(mg, node, spec)
        if _is_in_place(mg, node):
            _hand_on_the_result(mg, node)
        mg.replace(node, twin)
        twins[str(node.target)] = twin
        record_formats(node, twin)


def quantized_twin(mg: MaseGraph, node: fx.Node, spec: QuantSpec) -> QuantizedOperator:
    """The quantized module for what a node calls."""
    row, module = mg.operator(node), mg.module_of(node)
    if isinstance(module, QuantizedOperator):
        return module.with_spec(spec)
    if module is not None and row.quantized is not None:
        return row.quantized.from_float(module, spec)
    if row.twin is not None:
        return row.twin(config=spec)
    function = getattr(torch.Tensor, str(node.target)) if node.op == "call_method" else node.target
    return QuantCall(function, row.arguments, spec)  # type: ignore[arg-type]


def _is_in_place(mg: MaseGraph, node: fx.Node) -> bool:
    """True for calls that write into their first input."""
    if node.op == "call_module":
        return bool(getattr(mg.module_of(node), "inplace", False))
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).startswith("__")
    by_flag = node.kwargs.get("inplace") is True or True in node.args[1:2]
    return by_flag or mutates_input(node.target)  # type: ignore[arg-type]


def _hand_on_the_result(mg: MaseGraph, node: fx.Node) -> None:
    """Later readers of an input that is written into read the result instead.

    The quantized twin writes into the rounded copy of its input, which nobody else has.
    """
    source = node.args[0] if node.args else None
    if isinstance(source, fx.Node):
        nodes = mg.nodes
        later = set(nodes[nodes.index(node) + 1 :])
        source.replace_all_uses_with(node, delete_user_cb=lambda user: user in later)
