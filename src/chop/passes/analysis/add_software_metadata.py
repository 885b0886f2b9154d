"""Software metadata: the section for statistics of each tensor."""

from __future__ import annotations

from typing import Any

from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.metadata import TensorInfo
from chop.passes.base import MASE_KEYS, NoConfig, graph_pass


@graph_pass(config=NoConfig, ignores=MASE_KEYS, requires=("add_common_metadata_analysis_pass",))
def add_software_metadata_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Adds an entry `{"stat": {}}` to `software` for every tensor of `common`, under the same name.

    Existing entries are kept.

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
