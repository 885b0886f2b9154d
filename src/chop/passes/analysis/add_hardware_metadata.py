"""Hardware metadata: nodes without logic in a circuit, and components of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.ops import Kind
from chop.passes.base import MASE_KEYS, graph_pass


@dataclass(frozen=True)
class HardwareMetadataConfig:
    """Settings of `add_hardware_metadata_analysis_pass`.

    Attributes:
        fold: for an integer graph, maximum cycles per sample of a component; 0 selects a fold with
            about 256 multipliers.
    """

    fold: int = 0


@graph_pass(
    config=HardwareMetadataConfig,
    ignores=MASE_KEYS,
    requires=("add_common_metadata_analysis_pass",),
)
def add_hardware_metadata_analysis_pass(
    mg: MaseGraph, config: HardwareMetadataConfig
) -> dict[str, Any]:
    """Sets `hardware["is_implicit"]`: true if a node needs no logic of its own at inference.

    The nodes of an integer graph correspond to circuit components. Its other nodes get the keys
    `toolchain` ("INTERNAL_RTL"), `module` (SystemVerilog module), `parameters`, `lanes` (of each
    input) and `out_lanes`, `cycles` (between two samples) and `memory_bits` (of its ROMs).

    Returns:
        implicit: number of nodes without own logic.
        explicit: number of the other nodes.
        interval: cycles between two samples without stalls; None for graphs with real numbers.

    Raises:
        ConfigError: if operators of an integer graph have no circuit.
    """
    for node in mg.nodes:
        row = mg.operator(node)
        is_wiring = row.layout in ("view", "read") or row.kind is Kind.DROPOUT
        is_port = not node.op.startswith("call_")
        node_metadata(node).hardware["is_implicit"] = is_wiring or is_port
    interval = _note_components(mg, config.fold)
    implicit = sum(node_metadata(node).hardware["is_implicit"] for node in mg.nodes)
    explicit = len(mg.nodes) - implicit
    return {"implicit": implicit, "explicit": explicit, "interval": interval}


def _note_components(mg: MaseGraph, fold: int) -> int | None:
    """Adds the components of an integer graph. Returns its interval; None for other graphs."""
    # The engine is imported when it is used: it is large.
    from chop.hardware.design.emit import emit
    from chop.hardware.integer_form import is_integer

    if not is_integer(mg):
        return None
    design = emit(mg, fold)
    parts = {part.node: part for part in design.netlist.instances if part.node}
    for node in mg.nodes:
        part, record = parts.get(node.name), node_metadata(node).hardware
        record["is_implicit"] = part is None
        if part is not None:
            plan = part.plan
            record["toolchain"] = "INTERNAL_RTL"
            record["module"] = part.module
            record["parameters"] = dict(plan.parameters)
            record["lanes"], record["out_lanes"] = plan.lanes, plan.out.lanes
            record["cycles"] = plan.cycles
            record["memory_bits"] = sum(memory.bits for memory in plan.memories.values())
    return design.interval
