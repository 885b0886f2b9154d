"""Chart of a model's graph: nodes with modules, shapes, formats and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from chop.report.charts.chart import GraphChart, GraphNode

if TYPE_CHECKING:
    from chop.ir.graph import MaseGraph

DEEPEST = 10**6
"""Nesting limit deeper than any model, so that no node is folded into a box."""


def graph_chart(
    mg: MaseGraph, numbers: Mapping[str, Mapping[str, float]] | None = None
) -> GraphChart:
    """Returns a graph as a chart, without the nodes that compute sizes.

    Args:
        mg: the graph.
        numbers: path of a layer -> its measured numbers by name.
    """
    from chop.ir.drawing.view_model import build_view_model

    plan, numbers_by_path = build_view_model(mg.model, DEEPEST), numbers or {}
    reads: dict[int, list[int]] = {}
    for source, users in plan.uses.items():
        for user in users:
            reads.setdefault(user, []).append(source)
    nodes = []
    for place, path in enumerate(plan.paths):
        box = plan.words[f"#{place}"]
        nodes.append(
            GraphNode(
                tuple(path),
                str(box.kind),
                box.lines,
                tuple(reads.get(place, ())),
                box.is_quantized,
                box.stays_float,
                dict(numbers_by_path.get(".".join(path), {})),
            )
        )
    return GraphChart(mg.model.record.class_name, tuple(nodes), dict(plan.letters))
