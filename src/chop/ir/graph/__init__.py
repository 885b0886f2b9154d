"""The captured model as passes see it."""

from chop.ir.graph.mase_graph import MaseGraph, Provenance, metadata_of
