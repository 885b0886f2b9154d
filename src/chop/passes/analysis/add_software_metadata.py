"""Adds the software section, for what is measured of each tensor."""

from __future__ import annotations

from typing import Any

from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.metadata import TensorInfo
from chop.passes.base import MASE_KEYS, NoConfig, graph_pass


@graph_pass(config=NoConfig, ignores=MASE_KEYS, requires=("add_common_metadata_analysis_pass",))
def add_software_metadata_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Gives every tensor of `common` an entry `{"stat": {}}` under the same name in `software`.

    What is there already stays.

    Returns: nothing.
    """
    for node in mg.nodes:
        metadata = node_metadata(node)
        for side in ("args", "results"):
            entries = metadata.software.setdefault(side, {})
            for name, info in metadata.common[side].items():
                if isinstance(info, TensorInfo):
                    entries.setdefault(name, {}).setdefault("stat", {})
    return {}
