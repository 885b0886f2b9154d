"""A table of what each node is in a circuit."""

from __future__ import annotations

from typing import Any

from chop.base.tables import print_table
from chop.ir.graph import MaseGraph, metadata_of
from chop.passes.base import NoConfig, graph_pass

COLUMNS = ("node", "operator", "implicit", "module", "cycles")


@graph_pass(config=NoConfig, requires=("add_hardware_metadata_analysis_pass",))
def report_node_hardware_type_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Prints a table with a row per node.

    Returns:
        rows: one dict per node: its name, MASE's operator, whether it needs no logic of its own,
            and, of a graph of integers, its SystemVerilog module and the cycles between two
            samples ("" where it has none).
    """
    rows = []
    for node in mg.nodes:
        hardware = metadata_of(node).hardware
        module, cycles = hardware.get("module", ""), hardware.get("cycles", "")
        values = (node.name, mg.operator(node).name, hardware["is_implicit"], module, cycles)
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    print_table("Hardware types", rows, COLUMNS)
    return {"rows": rows}
