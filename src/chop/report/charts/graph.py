"""Graph of a model as a chart: nodes with their modules, shapes, formats and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from chop.report.charts.chart import GraphChart, GraphNode

if TYPE_CHECKING:
    from chop.ir.graph import MaseGraph

DEEPEST = 10**6
"""More levels of modules than a model has: no node is folded into a box."""


def graph_chart(
    mg: MaseGraph, numbers: Mapping[str, Mapping[str, float]] | None = None
) -> GraphChart:
    """A graph as a chart; nodes that compute sizes are left out.

    Args:
        mg: the graph.
        numbers: path of a layer -> what is measured of it, by name.
    """
    from chop.ir.drawing.view_model import build_view_model

    plan, found = build_view_model(mg.model, DEEPEST), numbers or {}
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
                dict(found.get(".".join(path), {})),
            )
        )
    return GraphChart(mg.model.record.class_name, tuple(nodes), dict(plan.letters))
