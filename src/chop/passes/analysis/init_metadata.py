"""Initialization of empty node metadata."""

from __future__ import annotations

from typing import Any

from chop.ir.graph import MaseGraph
from chop.ir.metadata import MaseMetadata
from chop.passes.base import MASE_KEYS, NoConfig, graph_pass


@graph_pass(config=NoConfig, ignores=MASE_KEYS)
def init_metadata_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Sets `node.meta["mase"]` of every node to an empty `MaseMetadata`.

    A graph without example inputs has no nodes yet; its nodes get metadata when it is captured.

    Returns: nothing.
    """
    for node in mg.nodes if mg.is_captured else ():
        node.meta["mase"] = MaseMetadata(node)
    return {}
