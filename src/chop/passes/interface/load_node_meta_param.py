"""Reads the metadata of a graph's nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.ir.graph import MaseGraph
from chop.ir.storage.metadata_file import read_metadata
from chop.passes.base import check_graph
from chop.passes.interface.base import path_of

NAME = "load_node_meta_param_interface_pass"


def load_node_meta_param_interface_pass(
    graph: MaseGraph, pass_args: str | Path | Mapping[str, Any]
) -> tuple[MaseGraph, dict[str, Any]]:
    """Reads what `save_node_meta_param_interface_pass` wrote of the same graph.

    Args:
        graph: the graph; its nodes get the metadata in place of what they have.
        pass_args: the file, or `{"path": file}`.
    Returns: the graph, and `{"nodes": how many have metadata, "path": the file}`.

    Raises:
        GraphError: `graph` is no MaseGraph, or not the one that was written.
        ConfigError: no file is named.
        CheckpointError: the file is missing, broken or of another kind.
    """
    check_graph(NAME, graph)
    path = path_of(pass_args, "path", NAME)
    return graph, {"nodes": read_metadata(graph.nodes, graph.provenance, path), "path": path}
