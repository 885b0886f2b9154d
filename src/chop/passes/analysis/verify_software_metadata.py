"""Checks the software section, for what is measured of each tensor."""

from __future__ import annotations

from typing import Any

from chop.errors import GraphError
from chop.ir.graph import MaseGraph, metadata_of
from chop.ir.metadata import TensorInfo
from chop.passes.base import MASE_KEYS, NoConfig, graph_pass


@graph_pass(config=NoConfig, ignores=MASE_KEYS, requires=("add_software_metadata_analysis_pass",))
def verify_software_metadata_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Compares the names of the tensors in `software` with those in `common`, node by node.

    Returns:
        checked: number of nodes.

    Raises:
        GraphError: a tensor has no entry in `software`.
    """
    for node in mg.nodes:
        metadata = metadata_of(node)
        for side in ("args", "results"):
            noted = metadata.software.get(side, {})
            for name, info in metadata.common[side].items():
                if isinstance(info, TensorInfo) and "stat" not in noted.get(name, {}):
                    raise GraphError(
                        f"node '{node.name}': its software metadata lacks {side}.{name}; run "
                        "add_software_metadata_analysis_pass again."
                    )
    return {"checked": len(mg.nodes)}
