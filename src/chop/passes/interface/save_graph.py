"""Writes a graph into a folder, as a step of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.ir.graph import MaseGraph
from chop.passes.base import check_graph
from chop.passes.interface.base import GRAPH_FILE, path_of

NAME = "save_mase_graph_interface_pass"


def save_mase_graph_interface_pass(
    graph: MaseGraph, pass_args: str | Path | Mapping[str, Any]
) -> tuple[MaseGraph, dict[str, Any]]:
    """Writes `graph_module.pt` and `graph_module.mz` into a folder, which is made if missing.

    Args:
        graph: the graph; it is returned as it is.
        pass_args: the folder, or `{"save_dir": folder}`.
    Returns: the graph, and `{"path": what MaseGraph.from_checkpoint takes}`.

    Raises:
        GraphError: `graph` is no MaseGraph.
        ConfigError: no folder is named.
        CheckpointError: something in the graph cannot be exported.
    """
    check_graph(NAME, graph)
    path = path_of(pass_args, "save_dir", NAME) / GRAPH_FILE
    graph.export(path)
    return graph, {"path": path}
