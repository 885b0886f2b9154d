"""The captured model as passes see it."""

from chop.aliases import alias_modules
from chop.ir.graph.mase_graph import MaseGraph
from chop.ir.metadata import Provenance, metadata_of

alias_modules("chop.ir.metadata", "mase_metadata", below=__name__)

__all__ = [
    "MaseGraph",
    "Provenance",
    "metadata_of",
]
