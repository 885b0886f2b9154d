"""Reads a graph from a folder, as a step of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.ir.graph import MaseGraph
from chop.passes.interface.base import GRAPH_FILE, path_of


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
    path = path_of(pass_args, "load_dir", "load_mase_graph_interface_pass") / GRAPH_FILE
    return MaseGraph.from_checkpoint(path), {"path": path}
