"""MaseGraph, the captured model that passes work on."""

from chop.capture import dummy_inputs
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.metadata import Provenance, node_metadata

__all__ = [
    "MaseGraph",
    "Provenance",
    "dummy_inputs",
    "node_metadata",
]
