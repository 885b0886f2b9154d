"""Graph IR: the graph, its operator table, metadata, storage and drawing."""

from chop.ir.graph import MaseGraph

__all__ = [
    "MaseGraph",
]
