"""Graph as text, with node counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.base.files import write_text
from chop.ir.graph import MaseGraph
from chop.passes.base import graph_pass


@dataclass(frozen=True)
class ReportGraphConfig:
    """Settings of `report_graph_analysis_pass`.

    Attributes:
        file_name: output file; default, prints the text. Missing folders are created.
    """

    file_name: Path | None = None


@graph_pass(config=ReportGraphConfig)
def report_graph_analysis_pass(mg: MaseGraph, config: ReportGraphConfig) -> dict[str, Any]:
    """Prints or writes the graph and counts its nodes.

    Returns:
        nodes: number of nodes.
        ops: number of nodes by FX kind.
        operators: number of nodes by MASE operator.
        text: the printed or written text.
    """
    ops = Counter(node.op for node in mg.nodes)
    operators = Counter(mg.operator(node).name for node in mg.nodes if node.op.startswith("call_"))
    text = "\n".join(
        [
            str(mg.fx_graph).strip(),
            "",
            f"{mg.model.record.class_name}: {len(mg.nodes)} nodes",
            *(f"  {op}: {count}" for op, count in ops.most_common()),
            "operators:",
            *(f"  {name}: {count}" for name, count in operators.most_common()),
            "",
        ]
    )
    if config.file_name is None:
        from rich.console import Console

        Console().print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        write_text(config.file_name, text)
    return {"nodes": len(mg.nodes), "ops": dict(ops), "operators": dict(operators), "text": text}
