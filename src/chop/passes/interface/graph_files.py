"""Files of a graph and of its node metadata, as steps of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.ir.graph import MaseGraph
from chop.ir.storage.metadata_file import read_metadata, write_metadata
from chop.passes.base import check_graph
from chop.passes.interface.base import GRAPH_FILE, settings_path


def save_mase_graph_interface_pass(
    graph: MaseGraph, pass_args: str | Path | Mapping[str, Any]
) -> tuple[MaseGraph, dict[str, Any]]:
    """Writes `graph_module.pt` and `graph_module.mz` into a folder, which is created if missing.

    Args:
        graph: graph, which is returned unchanged.
        pass_args: folder, or `{"save_dir": folder}`.
    Returns: the graph, and `{"path": argument of MaseGraph.from_checkpoint}`.

    Raises:
        GraphError: if `graph` is not a MaseGraph.
        ConfigError: if there is no folder in the settings.
        CheckpointError: if a part of the graph cannot be exported.
    """
    check_graph("save_mase_graph_interface_pass", graph)
    path = settings_path(pass_args, "save_dir", "save_mase_graph_interface_pass") / GRAPH_FILE
    graph.export(path)
    return graph, {"path": path}


def load_mase_graph_interface_pass(
    graph: MaseGraph | None, pass_args: str | Path | Mapping[str, Any]
) -> tuple[MaseGraph, dict[str, Any]]:
    """Reads the graph that `save_mase_graph_interface_pass` wrote.

    Args:
        graph: not used; the loaded graph replaces it.
        pass_args: folder, or `{"load_dir": folder}`.
    Returns: the loaded graph, and `{"path": its path}`.

    Raises:
        ConfigError: if there is no folder in the settings.
        CheckpointError: if files are missing or broken, or refer to code that is not allowed.
    """
    path = settings_path(pass_args, "load_dir", "load_mase_graph_interface_pass") / GRAPH_FILE
    return MaseGraph.from_checkpoint(path), {"path": path}


def save_node_meta_param_interface_pass(
    graph: MaseGraph, pass_args: str | Path | Mapping[str, Any]
) -> tuple[MaseGraph, dict[str, Any]]:
    """Writes the metadata of every node to a JSON file with any suffix.

    Values of tensors (`add_value`) are omitted, since they are large and can be recomputed.

    Args:
        graph: graph, which is returned unchanged.
        pass_args: file, or `{"path": file}`.
    Returns: the graph, and `{"nodes": number of nodes with metadata, "path": the file}`.

    Raises:
        GraphError: if `graph` is not a MaseGraph, or has no metadata.
        ConfigError: if there is no file in the settings.
    """
    check_graph("save_node_meta_param_interface_pass", graph, ("init_metadata_analysis_pass",))
    path = settings_path(pass_args, "path", "save_node_meta_param_interface_pass")
    return graph, {"nodes": write_metadata(graph.nodes, graph.provenance, path), "path": path}


def load_node_meta_param_interface_pass(
    graph: MaseGraph, pass_args: str | Path | Mapping[str, Any]
) -> tuple[MaseGraph, dict[str, Any]]:
    """Reads metadata that `save_node_meta_param_interface_pass` wrote for the same graph.

    Args:
        graph: graph; the metadata of its nodes is replaced.
        pass_args: file, or `{"path": file}`.
    Returns: the graph, and `{"nodes": number of nodes with metadata, "path": the file}`.

    Raises:
        GraphError: if `graph` is not a MaseGraph, or not the written one.
        ConfigError: if there is no file in the settings.
        CheckpointError: if the file is missing, broken or of another kind.
    """
    check_graph("load_node_meta_param_interface_pass", graph)
    path = settings_path(pass_args, "path", "load_node_meta_param_interface_pass")
    return graph, {"nodes": read_metadata(graph.nodes, graph.provenance, path), "path": path}
