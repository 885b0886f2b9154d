"""Brings a graph to the level of modules, at which graphs are captured."""

from __future__ import annotations

from typing import Any

from chop.ir.graph import MaseGraph
from chop.passes.base import NoConfig, graph_pass


@graph_pass(config=NoConfig, takes_packed=True)
def raise_granularity_transform_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """A copy of the graph.

    MASE has graphs of single operations, from ONNX, to be raised to modules. Graphs here call whole
    `torch.nn` modules from the beginning.

    Returns:
        raised: number of nodes that were raised: 0.
        modules: number of nodes that call a module.
    """
    calls = [node for node in mg.nodes if node.op == "call_module"]
    return {"raised": 0, "modules": len(calls)}
