"""A table of what each node is."""

from __future__ import annotations

from typing import Any

from chop.base.tables import print_table
from chop.ir.graph import MaseGraph
from chop.passes.base import NoConfig, graph_pass

COLUMNS = ("node", "op", "operator", "mase_type", "module", "target")


@graph_pass(config=NoConfig)
def report_node_type_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Prints a table with a row per node.

    Returns:
        rows: one dict per node: its name, the kind that FX gives it, MASE's operator and type, the
            class of the module it calls ("" if none), and what it calls.
    """
    rows = []
    for node in mg.nodes:
        row, module = mg.operator(node), mg.module_of(node)
        class_name = "" if module is None else type(module).__name__
        called = node.target if isinstance(node.target, str) else node.target.__name__
        values = (node.name, node.op, row.name, row.mase_type, class_name, called)
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    print_table("Node types", rows, COLUMNS)
    return {"rows": rows}
