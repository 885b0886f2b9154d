"""Tables of node types, shapes and hardware components."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.base.tables import print_table
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.metadata import TensorInfo
from chop.passes.base import NoConfig, graph_pass

TYPE_COLUMNS = ("node", "op", "operator", "mase_type", "module", "target")


@graph_pass(config=NoConfig)
def report_node_type_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Prints a table of node types with a row per node.

    Returns:
        rows: one dict per node: its name, FX kind, MASE operator and type, the class of the called
            module ("" if none), and the call target.
    """
    rows = []
    for node in mg.nodes:
        row, module = mg.operator(node), mg.get_module(node)
        class_name = "" if module is None else type(module).__name__
        called = node.target if isinstance(node.target, str) else node.target.__name__
        values = (node.name, node.op, row.name, row.mase_type, class_name, called)
        rows.append(dict(zip(TYPE_COLUMNS, values, strict=True)))
    print_table("Node types", rows, TYPE_COLUMNS)
    return {"rows": rows}


SHAPE_COLUMNS = ("node", "inputs", "outputs")


@graph_pass(config=NoConfig, requires=("add_common_metadata_analysis_pass",))
def report_node_shape_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Prints a table of shapes and dtypes with a row per node.

    Returns:
        rows: one dict per node: its name, and `inputs` and `outputs`, dicts from the name of the
            argument or result to `(shape, dtype)`; dtypes as text, such as "float32".
    """
    rows = []
    for node in mg.nodes:
        common = node_metadata(node).common
        inputs, outputs = _tensors(common.args), _tensors(common.results)
        rows.append({"node": node.name, "inputs": inputs, "outputs": outputs})
    print_table("Node shapes", [{**row, **_as_text(row)} for row in rows], SHAPE_COLUMNS)
    return {"rows": rows}


def _tensors(entries: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {
        name: (info.shape, str(info.torch_dtype).removeprefix("torch."))
        for name, info in entries.items()
        if isinstance(info, TensorInfo) and info.torch_dtype is not None
    }


def _as_text(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        side: "\n".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in row[side].items())
        for side in ("inputs", "outputs")
    }


HARDWARE_COLUMNS = ("node", "operator", "implicit", "module", "cycles")


@graph_pass(config=NoConfig, requires=("add_hardware_metadata_analysis_pass",))
def report_node_hardware_type_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Prints a table of hardware components with a row per node.

    Returns:
        rows: one dict per node: its name, MASE operator, true if it needs no logic of its own, and,
            for an integer graph, its SystemVerilog module and the cycles between two samples ("" if
            it has none).
    """
    rows = []
    for node in mg.nodes:
        hardware = node_metadata(node).hardware
        module, cycles = hardware.get("module", ""), hardware.get("cycles", "")
        values = (node.name, mg.operator(node).name, hardware["is_implicit"], module, cycles)
        rows.append(dict(zip(HARDWARE_COLUMNS, values, strict=True)))
    print_table("Hardware types", rows, HARDWARE_COLUMNS)
    return {"rows": rows}
