"""Notes which nodes a circuit would need no logic for."""

from __future__ import annotations

from typing import Any

from chop.ir.graph import MaseGraph, metadata_of
from chop.ir.ops import Kind
from chop.passes.base import MASE_KEYS, NoConfig, graph_pass


@graph_pass(config=NoConfig, ignores=MASE_KEYS, requires=("add_common_metadata_analysis_pass",))
def add_hardware_metadata_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Sets `hardware["is_implicit"]`: True where a node needs no logic of its own at inference.

    Returns:
        implicit: number of nodes that need no logic of their own.
        explicit: number of the other nodes.
    """
    for node in mg.nodes:
        row = mg.operator(node)
        is_wiring = row.layout in ("view", "read") or row.kind is Kind.DROPOUT
        is_port = not node.op.startswith("call_")
        metadata_of(node).hardware["is_implicit"] = is_wiring or is_port
    implicit = sum(metadata_of(node).hardware["is_implicit"] for node in mg.nodes)
    return {"implicit": implicit, "explicit": len(mg.nodes) - implicit}
