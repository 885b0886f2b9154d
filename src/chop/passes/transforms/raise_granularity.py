"""MASE's step from single operations to modules, which graphs have here from the start."""

from __future__ import annotations

from typing import Any

from chop.ir.graph import MaseGraph
from chop.passes.base import NoConfig, graph_pass


@graph_pass(config=NoConfig, takes_packed=True)
def raise_granularity_transform_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Returns a copy of the graph.

    MASE raises graphs of single ONNX operations to modules. Graphs of chop call complete `torch.nn`
    modules from the start.

    Returns:
        raised: number of raised nodes: 0.
        modules: number of nodes that call a module.
    """
    calls = [node for node in mg.nodes if node.op == "call_module"]
    return {"raised": 0, "modules": len(calls)}
