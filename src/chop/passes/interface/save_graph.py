"""Writes a graph into a folder, as a step of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.config import convert
from chop.errors import ConfigError, did_you_mean
from chop.ir.graph import MaseGraph
from chop.passes.base import check_graph

NAME = "save_mase_graph_interface_pass"
FILE_NAME = "graph_module"


def save_mase_graph_interface_pass(
    graph: MaseGraph, pass_args: str | Path | Mapping[str, Any]
) -> tuple[MaseGraph, dict[str, Any]]:
    """Writes `graph_module.pt` and `graph_module.mz` into a folder, which is made if missing.

    Args:
        graph: the graph; it is handed on as it is.
        pass_args: the folder, or `{"save_dir": folder}`.
    Returns: the graph, and `{"path": what MaseGraph.from_checkpoint takes}`.

    Raises:
        GraphError: `graph` is no MaseGraph.
        ConfigError: no folder is named.
        CheckpointError: something in the graph cannot be exported.
    """
    check_graph(NAME, graph)
    path = path_of(pass_args, "save_dir", NAME) / FILE_NAME
    graph.export(path)
    return graph, {"path": path}


def path_of(pass_args: Any, key: str, where: str) -> Path:
    """The file or folder that the settings of a pass name, either alone or under `key`.

    Raises:
        ConfigError: they name none.
    """
    if isinstance(pass_args, Mapping):
        for name in pass_args:
            if name != key:
                raise ConfigError(f"{where}: unknown key '{name}': {did_you_mean(name, [key])}")
        pass_args = pass_args.get(key)
    return Path(convert(pass_args, Path, f"{where}: {key}"))
