"""Checks all the metadata of a graph."""

from __future__ import annotations

from typing import Any

from chop.ir.graph import MaseGraph
from chop.passes.base import MASE_KEYS, PASSES, NoConfig, graph_pass

PARTS = ("common", "software", "hardware")


@graph_pass(config=NoConfig, ignores=MASE_KEYS, requires=("add_common_metadata_analysis_pass",))
def verify_metadata_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Runs the checks of each kind of metadata that has been added.

    Returns:
        checked: number of nodes.
        kinds: the kinds of metadata that were checked.

    Raises:
        GraphError: something is missing or differs; see the pass of its kind.
    """
    done = {step.name for step in mg.provenance}
    kinds = [kind for kind in PARTS if f"add_{kind}_metadata_analysis_pass" in done]
    for kind in kinds:
        PASSES[f"verify_{kind}_metadata_analysis_pass"](mg)
    return {"checked": len(mg.nodes), "kinds": kinds}
