"""The captured model as passes see it."""

from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.metadata import Provenance, metadata_of

__all__ = [
    "MaseGraph",
    "Provenance",
    "metadata_of",
]
