"""A table of the shapes and dtypes that flow into and out of each node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.base.tables import print_table
from chop.ir.graph import MaseGraph, metadata_of
from chop.ir.metadata import TensorInfo
from chop.passes.base import NoConfig, graph_pass

COLUMNS = ("node", "inputs", "outputs")


@graph_pass(config=NoConfig, requires=("add_common_metadata_analysis_pass",))
def report_node_shape_analysis_pass(mg: MaseGraph, config: NoConfig) -> dict[str, Any]:
    """Prints a table with a row per node.

    Returns:
        rows: one dict per node: its name, and `inputs` and `outputs`, dicts from the name of the
            argument or result to `(shape, dtype)`; dtypes as text, such as "float32".
    """
    rows = []
    for node in mg.nodes:
        common = metadata_of(node).common
        inputs, outputs = _tensors(common.args), _tensors(common.results)
        rows.append({"node": node.name, "inputs": inputs, "outputs": outputs})
    print_table("Node shapes", [{**row, **_as_text(row)} for row in rows], COLUMNS)
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
