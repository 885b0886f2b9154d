"""Verification that nodes have the metadata of passes: software, hardware, and all kinds."""

from __future__ import annotations

from typing import Any

from chop.errors import GraphError
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.metadata import TensorInfo
from chop.passes.base import MASE_KEYS, PASSES, NoConfig, graph_pass


@graph_pass(config=NoConfig, ignores=MASE_KEYS, requires=("add_software_metadata_analysis_pass",))
def verify_software_metadata_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Compares the tensor names in `software` with those in `common` for each node.

    Returns:
        checked: number of nodes.

    Raises:
        GraphError: if a tensor has no entry in `software`.
    """
    for node in mg.nodes:
        metadata = node_metadata(node)
        for side in ("args", "results"):
            recorded = metadata.software.get(side, {})
            for name, info in metadata.common[side].items():
                if isinstance(info, TensorInfo) and "stat" not in recorded.get(name, {}):
                    raise GraphError(
                        f"node '{node.name}': its software metadata lacks {side}.{name}; run "
                        "add_software_metadata_analysis_pass again."
                    )
    return {"checked": len(mg.nodes)}


@graph_pass(config=NoConfig, ignores=MASE_KEYS, requires=("add_hardware_metadata_analysis_pass",))
def verify_hardware_metadata_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Checks that every node has `hardware["is_implicit"]`.

    Returns:
        checked: number of nodes.

    Raises:
        GraphError: if a node does not have it.
    """
    for node in mg.nodes:
        if not isinstance(node_metadata(node).hardware.get("is_implicit"), bool):
            raise GraphError(
                f"node '{node.name}': its hardware metadata lacks is_implicit; run "
                "add_hardware_metadata_analysis_pass again."
            )
    return {"checked": len(mg.nodes)}


PARTS = ("common", "software", "hardware")


@graph_pass(config=NoConfig, ignores=MASE_KEYS, requires=("add_common_metadata_analysis_pass",))
def verify_metadata_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Verifies each kind of metadata that has been added.

    Returns:
        checked: number of nodes.
        kinds: checked kinds of metadata.

    Raises:
        GraphError: if metadata is missing or differs; see the pass of its kind.
    """
    done = {step.name for step in mg.provenance}
    kinds = [kind for kind in PARTS if f"add_{kind}_metadata_analysis_pass" in done]
    for kind in kinds:
        PASSES[f"verify_{kind}_metadata_analysis_pass"](mg)
    return {"checked": len(mg.nodes), "kinds": kinds}
