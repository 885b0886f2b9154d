"""Dataflow diagram of a design: components, FIFOs and the streams between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chop.hardware.design.connect import Link, input_signal, output_signal
from chop.hardware.design.design import Design
from chop.hardware.design.instances import Boundary, Instance
from chop.hardware.design.stream import Stream
from chop.ir.drawing.draw import picture
from chop.ir.drawing.hierarchy import Item
from chop.ir.drawing.view_model import Box, ViewModel, box_item
from chop.ir.ops import Kind


@dataclass(frozen=True)
class Dataflow:
    """Boxes of a diagram: components, ports and FIFOs. Other links are drawn as edges.

    Attributes:
        title: title of the diagram.
        boxes: boxes by name, input ports first.
        uses: positions of the readers of each box.
        fifos: boxes that are FIFOs.
        homes: box of each instance in the top module. Skid buffers and converters belong to their
            reader, forks to their producer.
        slowest: boxes that need all cycles of a sample.
    """

    title: str
    boxes: dict[str, Box]
    uses: dict[int, list[int]]
    fifos: dict[str, Link]
    homes: dict[str, str]
    slowest: frozenset[str]


def build_dataflow(design: Design) -> Dataflow:
    """Builds the diagram of a design."""
    parts = design.netlist.instances
    boxes = {port.wire.signal: _port(port, Kind.INPUT) for port in design.netlist.inputs}
    boxes |= {part.name: _component(part) for part in parts}
    boxes |= {link.name: _fifo(link) for link in design.fifos}
    outputs = {output_signal(port): port for port in design.netlist.outputs}
    boxes |= {signal: _port(port, Kind.OUTPUT) for signal, port in outputs.items()}
    number = {name: place for place, name in enumerate(boxes)}
    behind = {link.targets[0]: link.name for link in design.fifos}
    edges: list[tuple[str, str]] = []
    for part in parts:
        for k, wire in enumerate(part.inputs):
            fifo = behind.get(input_signal(part, k))
            edges += [(wire.signal, fifo), (fifo, part.name)] if fifo else []
            edges += [] if fifo else [(wire.signal, part.name)]
    edges += [(port.wire.signal, signal) for signal, port in outputs.items()]
    uses: dict[int, list[int]] = {place: [] for place in number.values()}
    for source, target in edges:
        if number[target] not in uses[number[source]]:
            uses[number[source]].append(number[target])
    title = f"{design.top}: {len(parts)} components, a sample every {design.interval:,} cycles"
    homes = _homes(design, boxes)
    return Dataflow(
        title, boxes, uses, {f.name: f for f in design.fifos}, homes, _slowest(design, homes)
    )


def _homes(design: Design, boxes: Mapping[str, Box]) -> dict[str, str]:
    links, homes = design.connections.links, {name: name for name in boxes}
    behind = {link.source: link.targets[0] for link in links if len(link.targets) == 1}
    readers = {
        input_signal(part, k): part.name
        for part in design.netlist.instances
        for k in range(len(part.inputs))
    }
    for link in links:
        target = link.targets[0]
        # Converters and buffers form a chain that ends at the input of a component or at a port.
        while target in behind:
            target = behind[target]
        home = link.source if len(link.targets) > 1 else readers.get(target, target)
        homes.setdefault(link.name, home)
    return homes


def _slowest(design: Design, homes: Mapping[str, str]) -> frozenset[str]:
    cycles = {part.name: part.plan.cycles for part in design.netlist.instances}
    cycles |= {port.wire.signal: port.wire.stream.beats for port in design.netlist.inputs}
    cycles |= {output_signal(port): port.wire.stream.beats for port in design.netlist.outputs}
    slowest = {name for name, taken in cycles.items() if taken == design.interval}
    # A converter between two components can be slower than every component.
    if not slowest:
        links = design.connections.links
        slowest = {homes[link.name] for link in links if link.cycles == design.interval}
    return frozenset(slowest)


def dataflow_svg(design: Design) -> str:
    """Returns the diagram of a design as SVG."""
    dataflow = build_dataflow(design)
    items = tuple(box_item(name, (k,), box) for k, (name, box) in enumerate(dataflow.boxes.items()))
    root = Item("", tuple(range(len(items))), items)
    plan = ViewModel([], dataflow.uses, dataflow.boxes, root, 0, {}, frozenset())
    return picture(plan, dataflow.title, range(len(design.netlist.inputs)))


def _component(part: Instance) -> Box:
    plan = part.plan
    memory = sum(contents.bits for contents in plan.memories.values())
    lines = [part.module, _text(plan.out), f"{plan.cycles:,} cycles"]
    lines += [f"ROM {memory:,} bits"] if memory else []
    parameters = ", ".join(f"{name}={value}" for name, value in plan.parameters.items())
    return Box(part.name, part.drawn_as, tuple(lines), f"{part.name}: {parameters}")


def _fifo(link: Link) -> Box:
    depth = link.parameters["DEPTH"]
    lines = (f"{depth} x {link.bits} bits",)
    return Box("FIFO", Kind.CONSTANT, lines, f"{link.name}: {depth} beats")


def _port(port: Boundary, kind: Kind) -> Box:
    name, stream = port.name, port.wire.stream
    return Box(name, kind, (_text(stream),), f"{name}: {stream.beats} beats a sample")


def _text(stream: Stream) -> str:
    return f"{stream.lanes} x {stream.width} bits"
