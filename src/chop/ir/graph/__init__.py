"""MaseGraph, the captured model as passes see it."""

from chop.capture import dummy_inputs
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.metadata import Provenance, node_metadata

__all__ = [
    "MaseGraph",
    "Provenance",
    "dummy_inputs",
    "node_metadata",
]
