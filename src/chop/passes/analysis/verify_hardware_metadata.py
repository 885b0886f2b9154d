"""Checks that every node says whether it needs logic of its own."""

from __future__ import annotations

from typing import Any

from chop.errors import GraphError
from chop.ir.graph import MaseGraph, metadata_of
from chop.passes.base import MASE_KEYS, NoConfig, graph_pass


@graph_pass(config=NoConfig, ignores=MASE_KEYS, requires=("add_hardware_metadata_analysis_pass",))
def verify_hardware_metadata_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Looks for `hardware["is_implicit"]` on every node.

    Returns:
        checked: number of nodes.

    Raises:
        GraphError: a node lacks it.
    """
    for node in mg.nodes:
        if not isinstance(metadata_of(node).hardware.get("is_implicit"), bool):
            raise GraphError(
                f"node '{node.name}': its hardware metadata lacks is_implicit; run "
                "add_hardware_metadata_analysis_pass again."
            )
    return {"checked": len(mg.nodes)}
