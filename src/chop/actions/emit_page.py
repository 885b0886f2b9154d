"""Page of an emitted circuit: tiles, and the dataflow as a chart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.hardware.dataflow import dataflow_of
from chop.hardware.design import Design
from chop.report.charts import GraphChart, GraphNode
from chop.report.report import Cell, Tile


def tiles_of(result: Mapping[str, Any]) -> list[Tile]:
    """Equal outputs, interval, multipliers, and the clock where the circuit is placed.

    Args:
        result: of the job.
    """
    equal = sum(row["equal"] for row in result["verification"])
    multipliers = sum(row["multipliers"] for row in result["components"])
    simulated, planned = result["verification"][0]["interval"], result["interval"]
    interval = Cell.of(planned, ",") if simulated is None else Cell.of(simulated, ",.1f")
    plan = "planned" if simulated is None else f"planned {planned:,}"
    simulations = f"of as many, in {len(result['verification'])} simulations"
    tiles = [
        Tile("equal outputs", Cell.of(equal, ","), simulations),
        Tile("interval (cycles)", interval, plan),
        Tile("multipliers", Cell.of(multipliers, ","), f"{len(result['components'])} components"),
    ]
    placement = result["placement"]
    if placement:
        clock = Cell(placement["frequency_mhz"], f"{placement['frequency_mhz']:.1f} MHz")
        tiles.append(Tile("clock after routing", clock, placement["device"]))
    return tiles


def dataflow_chart(design: Design) -> GraphChart:
    """The dataflow of a design as a chart.

    Args:
        design: the circuit.
    """
    found = dataflow_of(design)
    reads: dict[int, list[int]] = {place: [] for place in range(len(found.boxes))}
    for source, users in found.uses.items():
        for user in users:
            reads[user].append(source)
    nodes = [
        GraphNode((name,), str(box.kind), box.lines, tuple(reads[place]))
        for place, (name, box) in enumerate(found.boxes.items())
    ]
    return GraphChart(found.title, tuple(nodes))
