"""Report page of an emitted circuit: tiles, interface, equal outputs, and the dataflow chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chop.actions.emit.timing import latency_tile
from chop.hardware.costs.estimate import describe_estimate
from chop.hardware.design.axis import axis_name, has_control, stream_ports
from chop.hardware.design.connect import Link
from chop.hardware.design.dataflow import Dataflow, build_dataflow
from chop.hardware.design.design import Design
from chop.hardware.design.instances import Instance
from chop.hardware.design.interface import describe_interface
from chop.hardware.design.load import REGISTERS, memory_suffix, window
from chop.ir.graph import MaseGraph
from chop.report.charts.chart import Axis, Bar, BarChart, Chart, GraphChart, GraphNode
from chop.report.report import Block, Cell, Heading, Note, Table, Tile

SOFT = "soft_multipliers"
"""Column with the number of products in lookup tables, by component."""
HANDSHAKE = (
    "All signals are synchronous to the rising edge of clk_i. rst_ni is a synchronous reset, "
    "active low: hold it low for the first four cycles, as the testbench does. A beat is "
    "transferred at an edge with valid and ready high; until then the sender holds valid and data. "
    "No signal marks the first beat of a sample: count beats from the reset. The next sample may "
    "follow at once."
)
LANES = (
    "A beat has one code per lane in two's complement, with lane 0 in the lowest bits. Element p "
    "of the order is in lane p % lanes of beat p // lanes; dimensions are counted from 0."
)
VALUES = (
    "In integer formats, the code of an input is its value divided by the value of a code, rounded "
    "to nearest, ties to even, and clipped to the range of codes. Inputs are those of the model, "
    "after preprocessing such as the scaling of pixels. The value of an output is its code times "
    "the value of a code. A classifier has an output element for each class, and the largest value "
    "is its answer."
)
AXI_STREAM = (
    "rtl/{}.sv has the same ports as AXI4-Stream, with the clock aclk and the synchronous "
    "reset aresetn, active low, and was simulated around top. A beat has its codes in the lowest "
    "bits of tdata. Inputs ignore the padding above them; outputs have zeros there, tkeep of all "
    "ones, and tlast at the last beat of a sample. tlast of inputs is checked: frame_error stays "
    "high until the reset after a tlast at another beat, or a last beat without it."
)
AXI_LITE = (
    "Signals s_axi_* have 32 bits of data. Other addresses and writes of read-only registers are "
    "answered with SLVERR and change nothing, as are reads of loadable weights, and words of them "
    "out of order or with missing strobes."
)
LOADABLE = (
    "After each reset, the circuit takes the words of weights/weights.bin: 32 bits each, "
    "little-endian, in this order, from the port weights or the AXI4-Lite window. Until the last "
    "word, the components stay in reset, and inputs wait. Later words are not taken. An entry is a "
    "word of a memory, with its lowest bits in its first word; unused bits are ignored."
)
BOTTLENECK, CRITICAL = "bottleneck", "critical path"
NEAR = 0.9
"""Minimum share of the interval for a component that counts as slow."""
TOLERANCE = 0.03
"""Relative deviation from the planned interval above which the report mentions it."""
MOST_BARS = 24
"""Maximum number of components in the chart of cycles: the slowest."""


def build_tiles(result: Mapping[str, Any]) -> list[Tile]:
    """Returns tiles with equal outputs, latency, interval, multipliers, and the clock if placed."""
    equal = sum(row["equal"] for row in result["verification"])
    multipliers, soft = (
        sum(row[name] for row in result["components"]) for name in ("multipliers", SOFT)
    )
    simulated, planned = result["verification"][0]["interval"], result["interval"]
    interval = Cell.of(planned, ",") if simulated is None else Cell.of(simulated, ",.1f")
    plan = "planned" if simulated is None else f"planned {planned:,}"
    simulations = f"all, in {len(result['verification'])} simulations"
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
    """Returns the table of ports: signals, lanes, bits, beats, code values, and element order."""
    rows = [about.row for about in describe_interface(design.netlist)]
    return Table("Ports of the circuit", rows, is_printed=False)


def wrapper_blocks(design: Design) -> list[Block]:
    """Returns the AXI ports of a wrapped design; nothing without a wrapper."""
    if not design.wrapper:
        return []
    rows = [
        {
            "port": port.name,
            "signals": f"{axis_name(port)}_*",
            "tdata bits": 8 * port.bytes,
            "padding bits": 8 * port.bytes - port.bits,
            "beats until tlast": port.beats,
        }
        for port in stream_ports(design)
    ]
    title = f"AXI4-Stream ports of {design.wrapper}"
    note = AXI_STREAM.format(design.wrapper)
    return [
        Note(note, is_printed=False),
        Table(title, rows, is_printed=False),
        *_register_blocks(design),
    ]


def _register_blocks(design: Design) -> list[Block]:
    """Returns the AXI4-Lite registers of a wrapped design, if it has some."""
    if not has_control(design.wrapper):
        return []
    words = 0 if design.load is None else design.load.port.beats
    rows = [
        {"register": name, "byte address": f"0x{address:x}", "purpose": purpose}
        for name, address, purpose in REGISTERS
    ]
    if words:
        ends = window(words), window(words) + 4 * words - 4
        purpose = f"{words:,} words of weights, written in ascending order with all strobes"
        rows.append(
            {
                "register": "weights",
                "byte address": f"0x{ends[0]:x} to 0x{ends[1]:x}",
                "purpose": purpose,
            }
        )
    title = f"AXI4-Lite registers of {design.wrapper}"
    return [Note(AXI_LITE, is_printed=False), Table(title, rows, is_printed=False)]


def load_blocks(design: Design) -> list[Block]:
    """Returns the address map of loadable weights, and the memories that stay fixed."""
    if design.load is None:
        return []
    loaded = [memory.row for memory in design.load.memories]
    fixed = [
        {
            "component": part.name,
            "memory": memory_suffix(name),
            "bits": memory.bits,
            "reason": part.fixed_because,
        }
        for part in design.netlist.instances
        for name, memory in part.plan.memories.items()
        if not memory.is_loadable
    ]
    blocks: list[Block] = [
        Heading("Weights at run time"),
        Note(LOADABLE, is_printed=False),
        Table("Loadable memories", loaded, is_printed=False),
    ]
    return blocks + [Table("Fixed memories", fixed, is_printed=False)] * bool(fixed)


def equal_outputs(design: Design, verification: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the table of equal codes by output and simulation; all passed."""
    titles = [f"{row['simulator']}, {row['profile'].replace('_', ' ')}" for row in verification]
    rows: list[dict[str, Any]] = []
    for port in design.ports:
        if not port.is_input:
            counts = [row["samples"] * port.beats * port.lanes for row in verification]
            rows.append({"output": port.name, **dict(zip(titles, map(_all, counts), strict=True))})
    streams = [_all(len(design.streams))] * len(titles)
    rows.append(
        {
            "output": "inner streams without protocol errors",
            **dict(zip(titles, streams, strict=True)),
        }
    )
    return Table("Equal codes by output and simulation", rows, is_printed=False)


def _all(count: int) -> Cell:
    return Cell(count, f"{count:,} of {count:,}")


def fifo_blocks(result: Mapping[str, Any]) -> list[Block]:
    """Returns the depths of shrunk FIFOs, and the resources before and after."""
    fifos = result["fifos"]
    if not fifos:
        return []
    rows = [
        {
            "FIFO": row["name"],
            "bits of a beat": row["bits"],
            "planned depth": Cell.of(row["planned"], ","),
            "used": Cell.of(row["used"], ","),
            "final depth": Cell.of(row["kept"], ","),
            "bits saved": Cell.of(row["saved_bits"], ","),
        }
        for row in fifos["depths"]
    ]
    title = f"Estimated for {fifos['estimated_for']} with planned and final depths"
    estimated = Table(title, fifos["estimated"])
    depths = Table("Depths of FIFOs, in beats", rows, is_printed=False)
    counted = Note(describe_estimate(fifos["family"]))
    return [Heading("FIFOs"), Note(_shrunk_sentence(fifos)), depths, counted, estimated]


def _shrunk_sentence(fifos: Mapping[str, Any]) -> str:
    """Describes the saving of shrunk FIFOs, or the reason why they keep their depths."""
    rows = fifos["depths"]
    if not rows:
        return "There are no FIFOs to shrink."
    if fifos["kept_because"]:
        return f"FIFOs have their planned depths: {fifos['kept_because'].rstrip('.')}."
    planned, final = (sum(row[kind] for row in rows) for kind in ("planned", "kept"))
    saved = sum(row["saved_bits"] for row in rows)
    growing = sum(row["is_growing"] for row in rows)
    more = (
        f" {growing} of them may need more for more samples and stay as planned." if growing else ""
    )
    return (
        f"{len(rows)} FIFOs hold {final:,} beats instead of {planned:,}, which saves {saved:,} "
        f"bits: their maximum fill with evenly spaced samples, plus a margin.{more}"
    )


def charts_of_circuit(design: Design, integer: MaseGraph, result: Mapping[str, Any]) -> list[Chart]:
    """Returns charts of cycles by component, device utilization, and dataflow."""
    path = result["placement"].get("critical_path", {}).get("through", ())
    fills = {row["profile"]: row["fills"] for row in result["verification"] if row["fills"]}
    simulated = result["verification"][0]["interval"]
    charts: list[Chart] = [_cycles_chart(design, simulated)]
    used = utilization_chart(result)
    charts += [used] if used.bars else []
    return [*charts, dataflow_chart(design, _paths_by_node(integer), fills, path, simulated)]


def _cycles_chart(design: Design, simulated: float | None) -> BarChart:
    """Returns the chart of cycles per sample by component; the longest bar is the interval.

    Args:
        design: the circuit.
        simulated: simulated interval; None for a single sample.
    """
    parts = sorted(design.netlist.instances, key=lambda part: -part.plan.cycles)
    slowest = [part for part in design.netlist.instances if part in parts[:MOST_BARS]]
    bars = tuple(Bar(part.name, (float(part.plan.cycles),)) for part in slowest)
    about = f", the {MOST_BARS} slowest of {len(parts)}" if len(parts) > MOST_BARS else ""
    limits = {"interval": float(design.interval)}
    title = f"Planned cycles per sample by component{about}"
    if simulated is not None:
        title += f"; simulated interval: {simulated:,.1f}"
    return BarChart(title, Axis("cycles per sample", whole=True, log=False), bars, limits=limits)


def utilization_chart(result: Mapping[str, Any]) -> BarChart:
    """Returns the chart of used resources of the device, estimated and placed."""
    shares = {
        f"{row['resource']}, estimated": row["estimated"] / row["there"]
        for row in result["device"]
        if row["there"]
    }
    shares |= {
        f"{name}, placed": row["used"] / row["available"]
        for name, row in sorted(result["placement"].get("utilization", {}).items())
        if row["available"]
    }
    device = result["placement"].get("device") or result["config"]["device"]
    bars = tuple(Bar(name, (share,)) for name, share in shares.items())
    axis = Axis("used", percent=True, log=False)
    return BarChart(f"Used of {device}, by resource", axis, bars, limits={"all": 1.0})


def _paths_by_node(integer: MaseGraph) -> dict[str, tuple[str, ...]]:
    """Returns the module path of each node, with its own name, by its name in the graph."""
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
    """Returns the dataflow of a design as a chart, with its bottlenecks.

    Args:
        design: the circuit.
        paths: module path of each node, with its own name, by node.
        fills: maximum beats that each FIFO held, by stall profile.
        path: instances on the critical path after routing.
        simulated: simulated interval; None for a single sample.
    """
    dataflow = build_dataflow(design)
    reads: dict[int, list[int]] = {place: [] for place in range(len(dataflow.boxes))}
    for source, users in dataflow.uses.items():
        for user in users:
            reads[user].append(source)
    slowest = _bottlenecks(design, dataflow, simulated)
    marked = {BOTTLENECK: slowest, CRITICAL: {dataflow.homes.get(name) for name in path}}
    parts = {part.name: part for part in design.netlist.instances}
    places = _paths_of_boxes(design, dataflow, paths or {})
    nodes = []
    for place, (name, box) in enumerate(dataflow.boxes.items()):
        fifo, part, brief, lines = dataflow.fifos.get(name), parts.get(name), "", box.lines
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
    means |= {CRITICAL: "on the critical path after routing"} if path else {}
    components = f"{len(parts)} component{'s' * (len(parts) != 1)}"
    title = f"dataflow of {components}, a sample every {design.interval:,} cycles"
    return GraphChart(title, tuple(nodes), marks=means)


def _bottlenecks(
    design: Design, dataflow: Dataflow, simulated: float | None = None
) -> frozenset[str]:
    """Returns the boxes that determine the interval.

    Empty for a balanced circuit, in which at least half of the components are within a tenth of the
    slowest, and for one slower than any component because a FIFO is too short.

    Args:
        design: the circuit.
        dataflow: its boxes.
        simulated: simulated interval; None for a single sample.
    """
    cycles = [part.plan.cycles for part in design.netlist.instances]
    near = sum(taken >= NEAR * design.interval for taken in cycles)
    is_late = simulated is not None and simulated > (1 + TOLERANCE) * design.interval
    return frozenset() if is_late or 2 * near >= len(cycles) else dataflow.slowest


def _paths_of_boxes(
    design: Design, dataflow: Dataflow, paths: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Returns modules and name of each box; FIFOs and constants are placed with their reader."""
    places = {p.name: paths[p.node] for p in design.netlist.instances if p.node in paths}
    names = list(dataflow.boxes)
    inner = {*dataflow.fifos, *(part.name for part in design.netlist.instances)}

    def settings_path(place: int) -> tuple[str, ...]:
        name, users = names[place], dataflow.uses[place]
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
    """Returns the short and the long text of a FIFO: its depth, and its maximum fill."""
    depth = link.parameters["DEPTH"]
    counts = {profile: count for profile, count in held.items() if count is not None}
    lines = [f"{depth:,} beats of {link.bits} bits"]
    lines += [
        f"held at most {count:,}, stalls: {profile.replace('_', ' ')}"
        for profile, count in counts.items()
    ]
    fill = f"held {counts['none']:,} of {depth:,}" if "none" in counts else f"{depth:,} beats"
    return f"FIFO, {fill}", tuple(lines)
