"""Page of an emitted circuit: tiles, interface, equal outputs, and the dataflow as a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chop.actions.emit.timing import latency_tile
from chop.hardware.costs.estimate import ESTIMATED
from chop.hardware.design.connect import Link
from chop.hardware.design.dataflow import Dataflow, build_dataflow
from chop.hardware.design.design import Design
from chop.hardware.design.interface import describe_interface
from chop.hardware.design.netlist import Instance
from chop.ir.graph import MaseGraph
from chop.report.charts.chart import Axis, Bar, BarChart, Chart, GraphChart, GraphNode
from chop.report.report import Block, Cell, Heading, Note, Table, Tile

SOFT = "soft_multipliers"
"""The column of components' products in lookup tables."""
HANDSHAKE = (
    "All signals belong to the rising edge of clk_i. rst_ni is a synchronous reset, active low: "
    "hold it low for four cycles at start, as the testbench does. A beat moves at an edge where "
    "valid and ready are high; until then the sender holds valid and data. No signal marks the "
    "first beat of a sample: beats are counted from the reset on, and the next sample may follow "
    "at once. A beat has a code for each lane, lane 0 in the lowest bits, in two's complement. In "
    "integer formats the code of an input is its value divided by the value of a code, rounded to "
    "the nearest, ties to even, and limited to the codes; inputs are those of the model, after "
    "what prepares rows, such as the scaling of pixels. The "
    "element at place p of the order is in lane p % lanes of beat p // lanes; dimensions are "
    "counted from 0."
)
BOTTLENECK, CRITICAL = "bottleneck", "critical path"
NEAR = 0.9
"""Share of the interval from which on a component is as slow as the slowest."""
TOLERANCE = 0.03
"""Relative deviation from the planned interval above which the report mentions it."""
MOST_BARS = 24
"""Components whose cycles are drawn: the slowest."""


def build_tiles(result: Mapping[str, Any]) -> list[Tile]:
    """Equal outputs, latency, interval, multipliers, and the clock where the circuit is placed."""
    equal = sum(row["equal"] for row in result["verification"])
    multipliers, soft = (
        sum(row[name] for row in result["components"]) for name in ("multipliers", SOFT)
    )
    simulated, planned = result["verification"][0]["interval"], result["interval"]
    interval = Cell.of(planned, ",") if simulated is None else Cell.of(simulated, ",.1f")
    plan = "planned" if simulated is None else f"planned {planned:,}"
    simulations = f"of as many, in {len(result['verification'])} simulations"
    beside = f"{len(result['components'])} components"
    beside += f", and {soft:,} products in lookup tables" * (soft > 0)
    tiles = [
        Tile("equal outputs", Cell.of(equal, ","), simulations),
        latency_tile(result["timing"]),
        Tile("interval (cycles)", interval, plan),
        Tile("multipliers", Cell.of(multipliers, ","), beside),
    ]
    placement = result["placement"]
    if placement:
        clock = Cell(placement["frequency_mhz"], f"{placement['frequency_mhz']:.1f} MHz")
        pace = Cell.of(placement["samples_per_second"], ",")
        tiles.append(Tile("clock after routing", clock, placement["device"]))
        tiles.append(Tile("samples per second", pace, "by clock and simulated interval"))
    return tiles


def interface_table(design: Design) -> Table:
    """The ports: signals, lanes, bits, beats, what a code is worth, and the order of a sample."""
    rows = [about.row for about in describe_interface(design.netlist)]
    return Table("Ports of the circuit", rows, is_printed=False)


def equal_outputs(design: Design, verification: Sequence[Mapping[str, Any]]) -> Table:
    """For each output and simulation how many codes were equal; all that passed are."""
    titles = [f"{row['simulator']}, {row['profile'].replace('_', ' ')}" for row in verification]
    rows: list[dict[str, Any]] = []
    for port in design.ports:
        if not port.is_input:
            counts = [row["samples"] * port.beats * port.lanes for row in verification]
            rows.append({"output": port.name, **dict(zip(titles, map(_all, counts), strict=True))})
    streams = [_all(len(design.streams))] * len(titles)
    rows.append(
        {"output": "inner streams that keep the rules", **dict(zip(titles, streams, strict=True))}
    )
    return Table("Equal codes by output and simulation", rows, is_printed=False)


def _all(count: int) -> Cell:
    return Cell(count, f"{count:,} of {count:,}")


def fifo_blocks(result: Mapping[str, Any]) -> list[Block]:
    """Depths of FIFOs that were to be shrunk, and what the design takes before and after."""
    found = result["fifos"]
    if not found:
        return []
    rows = [
        {
            "FIFO": row["name"],
            "bits of a beat": row["bits"],
            "planned depth": Cell.of(row["planned"], ","),
            "used": Cell.of(row["used"], ","),
            "kept depth": Cell.of(row["kept"], ","),
            "bits saved": Cell.of(row["saved_bits"], ","),
        }
        for row in found["depths"]
    ]
    title = f"Estimated for {found['estimated_for']} with planned and kept depths"
    estimated = Table(title, found["estimated"])
    depths = Table("Depths of FIFOs, in beats", rows, is_printed=False)
    return [Heading("FIFOs"), Note(_shrunk_sentence(found)), depths, Note(ESTIMATED), estimated]


def _shrunk_sentence(found: Mapping[str, Any]) -> str:
    """How much smaller FIFOs are, or why they are not.

    Args:
        found: `fifos` of the result.
    """
    rows = found["depths"]
    if not rows:
        return "There is no FIFO to shrink."
    if found["kept_because"]:
        return f"FIFOs have their planned depths: {found['kept_because'].rstrip('.')}."
    planned, kept = (sum(row[kind] for row in rows) for kind in ("planned", "kept"))
    saved = sum(row["saved_bits"] for row in rows)
    growing = sum(row["is_growing"] for row in rows)
    more = (
        f" {growing} of them may need more for more samples, and are as planned." if growing else ""
    )
    return (
        f"{len(rows)} FIFOs hold {kept:,} beats in the place of {planned:,}, {saved:,} bits less: "
        f"what they stored where samples came evenly, and a margin.{more}"
    )


def charts_of_circuit(design: Design, integer: MaseGraph, result: Mapping[str, Any]) -> list[Chart]:
    """Cycles of components, what is used of a device, and the dataflow."""
    path = result["placement"].get("critical_path", {}).get("through", ())
    fills = {row["profile"]: row["fills"] for row in result["verification"] if row["fills"]}
    simulated = result["verification"][0]["interval"]
    charts: list[Chart] = [_cycles_chart(design, simulated)]
    used = utilization_chart(result)
    charts += [used] if used.bars else []
    return [*charts, dataflow_chart(design, _paths_by_node(integer), fills, path, simulated)]


def _cycles_chart(design: Design, simulated: float | None) -> BarChart:
    """The cycles that each component takes for a sample; the longest bar is the interval.

    Args:
        design: the circuit.
        simulated: interval; None where one sample was simulated.
    """
    parts = sorted(design.netlist.instances, key=lambda part: -part.plan.cycles)
    shown = [part for part in design.netlist.instances if part in parts[:MOST_BARS]]
    bars = tuple(Bar(part.name, (float(part.plan.cycles),)) for part in shown)
    about = f", the {MOST_BARS} slowest of {len(parts)}" if len(parts) > MOST_BARS else ""
    limits = {"interval": float(design.interval)}
    title = f"Cycles for a sample by component, planned{about}"
    if simulated is not None:
        title += f"; simulated interval: {simulated:,.1f}"
    return BarChart(title, Axis("cycles for a sample", whole=True, log=False), bars, limits=limits)


def utilization_chart(result: Mapping[str, Any]) -> BarChart:
    """What is used of each resource of the device: estimated, and as placed."""
    found = {
        f"{row['resource']}, estimated": row["estimated"] / row["there"]
        for row in result["device"]
        if row["there"]
    }
    found |= {
        f"{name}, placed": row["used"] / row["available"]
        for name, row in sorted(result["placement"].get("utilization", {}).items())
        if row["available"]
    }
    device = result["placement"].get("device") or result["config"]["device"]
    bars = tuple(Bar(name, (share,)) for name, share in found.items())
    axis = Axis("used", percent=True, log=False)
    return BarChart(f"Used of {device}, by resource", axis, bars, limits={"all": 1.0})


def _paths_by_node(integer: MaseGraph) -> dict[str, tuple[str, ...]]:
    """The modules that each node of a graph is in, and its own name, by its name in the graph."""
    from chop.ir.drawing.view_model import build_view_model
    from chop.report.charts.graph import DEEPEST

    plan = build_view_model(integer.model, DEEPEST)
    return {node.name: path for node, path in zip(plan.nodes, plan.paths, strict=True)}


def dataflow_chart(
    design: Design,
    paths: Mapping[str, tuple[str, ...]] | None = None,
    fills: Mapping[str, Mapping[str, int]] | None = None,
    path: Sequence[str] = (),
    simulated: float | None = None,
) -> GraphChart:
    """The dataflow of a design as a chart, with what bounds it.

    Args:
        design: the circuit.
        paths: node of the graph -> the modules that it is in, and its own name.
        fills: profile of stalls -> FIFO -> the most beats that it held.
        path: instances on the slowest path after routing.
        simulated: interval; None where one sample was simulated.
    """
    found = build_dataflow(design)
    reads: dict[int, list[int]] = {place: [] for place in range(len(found.boxes))}
    for source, users in found.uses.items():
        for user in users:
            reads[user].append(source)
    slowest = _bottlenecks(design, found, simulated)
    marked = {BOTTLENECK: slowest, CRITICAL: {found.homes.get(name) for name in path}}
    parts = {part.name: part for part in design.netlist.instances}
    places = _paths_of_boxes(design, found, paths or {})
    nodes = []
    for place, (name, box) in enumerate(found.boxes.items()):
        fifo, part, brief, lines = found.fifos.get(name), parts.get(name), "", box.lines
        if fifo is not None:
            held = {profile: counts.get(name) for profile, counts in (fills or {}).items()}
            brief, lines = _fifo_words(fifo, held)
        elif part is not None:
            brief, lines = _brief(part), (f"instance u_{name}", *box.lines)
        marks = tuple(mark for mark, names in marked.items() if name in names)
        kind = "FIFO" if fifo is not None else str(box.kind)
        read = tuple(reads[place])
        nodes.append(GraphNode(places[name], kind, lines, read, brief=brief, marks=marks))
    means = {BOTTLENECK: f"sets the interval of {design.interval:,} cycles"} if slowest else {}
    means |= {CRITICAL: "on the slowest path after routing"} if path else {}
    components = f"{len(parts)} component{'s' * (len(parts) != 1)}"
    title = f"dataflow of {components}, a sample every {design.interval:,} cycles"
    return GraphChart(title, tuple(nodes), marks=means)


def _bottlenecks(
    design: Design, dataflow: Dataflow, simulated: float | None = None
) -> frozenset[str]:
    """The boxes that alone keep the circuit from a shorter interval.

    There is none in a balanced circuit, half of whose components or more take as long as the
    slowest, within a tenth; nor in one that is slower than any component, as a FIFO is too short.

    Args:
        design: the circuit.
        dataflow: its boxes.
        simulated: interval; None where one sample was simulated.
    """
    cycles = [part.plan.cycles for part in design.netlist.instances]
    near = sum(taken >= NEAR * design.interval for taken in cycles)
    is_late = simulated is not None and simulated > (1 + TOLERANCE) * design.interval
    return frozenset() if is_late or 2 * near >= len(cycles) else dataflow.slowest


def _paths_of_boxes(
    design: Design, found: Dataflow, paths: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Modules and name of each box; FIFOs and constants are where they are read."""
    places = {p.name: paths[p.node] for p in design.netlist.instances if p.node in paths}
    names = list(found.boxes)
    inner = {*found.fifos, *(part.name for part in design.netlist.instances)}

    def settings_path(place: int) -> tuple[str, ...]:
        name, users = names[place], found.uses[place]
        if name not in places:
            modules = settings_path(users[0])[:-1] if users and name in inner else ()
            places[name] = (*modules, name)
        return places[name]

    return {name: settings_path(place) for place, name in enumerate(names)}


def _counted(count: str, what: str) -> str:
    return f"{count} {what}{'s' * (count != '1')}"


def _brief(part: Instance) -> str:
    lanes = ", ".join(map(str, part.plan.lanes))
    to = f"{lanes} to {part.plan.out.lanes}" if lanes else str(part.plan.out.lanes)
    return f"{_counted(to, 'lane')}, {_counted(f'{part.plan.cycles:,}', 'cycle')}"


def _fifo_words(link: Link, held: Mapping[str, int | None]) -> tuple[str, tuple[str, ...]]:
    """The brief and the lines of a FIFO: its depth, and how full it was."""
    depth = link.parameters["DEPTH"]
    counts = {profile: count for profile, count in held.items() if count is not None}
    lines = [f"{depth:,} beats of {link.bits} bits"]
    lines += [
        f"held {count:,} at most, stalls: {profile.replace('_', ' ')}"
        for profile, count in counts.items()
    ]
    fill = f"held {counts['none']:,} of {depth:,}" if "none" in counts else f"{depth:,} beats"
    return f"FIFO, {fill}", tuple(lines)
