"""WHAT A MODEL IS: the graph IR, its capture, its metadata, its files and its picture."""

from chop.ir.graph import MaseGraph

__all__ = [
    "MaseGraph",
]
