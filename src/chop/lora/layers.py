"""Linear layers of a graph, and their replacement by layers with or without LoRA adapters."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx, nn

from chop.ir.graph import MaseGraph


def list_linears(mg: MaseGraph) -> dict[str, nn.Linear]:
    """Returns the float or quantized Linear layers that the graph calls, by path."""
    called = {str(node.target): mg.get_module(node) for node in mg.nodes if _calls_linear(mg, node)}
    return {path: module for path, module in called.items() if isinstance(module, nn.Linear)}


def attach(mg: MaseGraph, layers: Mapping[str, nn.Linear]) -> None:
    """Replaces the layers at the given paths for every node that calls them."""
    for node in mg.nodes:
        if node.op == "call_module" and str(node.target) in layers:
            mg.replace(node, layers[str(node.target)])


def _calls_linear(mg: MaseGraph, node: fx.Node) -> bool:
    return node.op == "call_module" and mg.operator(node).name == "linear"
