"""Files of a graph and of its nodes' metadata, as steps of a pipeline."""

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
    check_graph("save_mase_graph_interface_pass", graph)
    path = settings_path(pass_args, "save_dir", "save_mase_graph_interface_pass") / GRAPH_FILE
    graph.export(path)
    return graph, {"path": path}


def load_mase_graph_interface_pass(
    graph: MaseGraph | None, pass_args: str | Path | Mapping[str, Any]
) -> tuple[MaseGraph, dict[str, Any]]:
    """Reads what `save_mase_graph_interface_pass` wrote.

    Args:
        graph: not used; what is read takes its place.
        pass_args: the folder, or `{"load_dir": folder}`.
    Returns: the graph that was read, and `{"path": where from}`.

    Raises:
        ConfigError: no folder is named.
        CheckpointError: the files are missing, broken, or name code that is not allowed.
    """
    path = settings_path(pass_args, "load_dir", "load_mase_graph_interface_pass") / GRAPH_FILE
    return MaseGraph.from_checkpoint(path), {"path": path}


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
    check_graph("save_node_meta_param_interface_pass", graph, ("init_metadata_analysis_pass",))
    path = settings_path(pass_args, "path", "save_node_meta_param_interface_pass")
    return graph, {"nodes": write_metadata(graph.nodes, graph.provenance, path), "path": path}


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
    check_graph("load_node_meta_param_interface_pass", graph)
    path = settings_path(pass_args, "path", "load_node_meta_param_interface_pass")
    return graph, {"nodes": read_metadata(graph.nodes, graph.provenance, path), "path": path}
