"""MaseGraph, the captured model as passes see it."""

from chop.capture import dummy_inputs
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.metadata import Provenance, metadata_of

__all__ = [
    "MaseGraph",
    "Provenance",
    "dummy_inputs",
    "metadata_of",
]
