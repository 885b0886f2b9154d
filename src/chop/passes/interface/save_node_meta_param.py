"""Writes the metadata of a graph's nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.ir.graph import MaseGraph
from chop.ir.storage.metadata_file import write_metadata
from chop.passes.base import check_graph
from chop.passes.interface.base import path_of

NAME = "save_node_meta_param_interface_pass"


def save_node_meta_param_interface_pass(
    graph: MaseGraph, pass_args: str | Path | Mapping[str, Any]
) -> tuple[MaseGraph, dict[str, Any]]:
    """Writes what passes have noted on every node to a JSON file, whatever its suffix.

    Values of tensors (`add_value`) are left out: they are large, and made again by a run.

    Args:
        graph: the graph; it is returned as it is.
        pass_args: the file, or `{"path": file}`.
    Returns: the graph, and `{"nodes": how many have metadata, "path": the file}`.

    Raises:
        GraphError: `graph` is no MaseGraph, or has no metadata.
        ConfigError: no file is named.
    """
    check_graph(NAME, graph, ("init_metadata_analysis_pass",))
    path = path_of(pass_args, "path", NAME)
    return graph, {"nodes": write_metadata(graph.nodes, graph.provenance, path), "path": path}
