"""Links between components with back-pressure: forks, width converters, FIFOs, skid buffers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chop.hardware.design.instances import Boundary, Instance, Netlist
from chop.hardware.design.plan import DIRECT
from chop.hardware.design.stream import Stream
from chop.hardware.folds.fifo_depths import SKID_BEATS, Schedule, schedule

FIFO = "chop_fifo"
"""Module of buffers that are deeper than a skid buffer."""


@dataclass(frozen=True)
class Link:
    """An instance between components that forwards beats.

    Attributes:
        module: SystemVerilog module.
        name: instance name.
        parameters: module parameters.
        source: input signal.
        targets: output signals; a fork has several.
        bits: bits of an output beat.
        cycles: cycles per sample.
        memory_bits: bits of its memory.
    """

    module: str
    name: str
    parameters: Mapping[str, int]
    source: str
    targets: tuple[str, ...]
    bits: int
    cycles: int
    memory_bits: int = 0


@dataclass(frozen=True, eq=False)
class Reader:
    """An input of an instance, or an output port.

    Attributes:
        name: name of the signal that it reads.
        stream: the stream as the producer sends it.
        lanes: required lanes.
        depth: required FIFO depth in beats.
    """

    name: str
    stream: Stream
    lanes: int
    depth: int


@dataclass(frozen=True)
class Connections:
    """Links between the components of a netlist.

    Attributes:
        links: instances that forward beats.
        streams: name and bits of every inner stream, those of components included.
        schedule: times of the beats.
    """

    links: Sequence[Link]
    streams: Sequence[tuple[str, int]]
    schedule: Schedule

    @property
    def interval(self) -> int:
        """Cycles between two samples of the slowest link."""
        return max((link.cycles for link in self.links), default=0)


def input_signal(instance: Instance, k: int) -> str:
    """Returns the name of the signals that input `k` of an instance reads."""
    return f"{instance.name}_in_{k}"


def output_signal(port: Boundary) -> str:
    """Returns the name of the signals behind an output port."""
    return f"{port.name}_out"


def connect(netlist: Netlist) -> Connections:
    """Connects every reader to its producer.

    A value with several readers gets a fork. If the lanes differ and neither number divides the
    other, two converters go through their greatest common divisor. Every connection ends in a FIFO
    or a skid buffer, which cuts the combinational path of `ready`, or in wires if the reader has a
    short path.
    """
    links: list[Link] = []
    times = schedule(netlist)
    streams = [(port.wire.signal, port.wire.stream.bits) for port in netlist.inputs]
    streams += [(instance.name, instance.plan.out.bits) for instance in netlist.instances]
    for signal, readers in _readers(netlist, times).items():
        branches = [signal]
        if len(readers) > 1:
            branches = [f"{signal}_branch_{number}" for number in range(len(readers))]
            links.append(_fork(signal, branches, readers[0].stream))
        for branch, reader in zip(branches, readers, strict=True):
            links += _chain(branch, reader)
    streams += [(target, link.bits) for link in links for target in link.targets]
    return Connections(links, streams, times)


def with_depths(connections: Connections, depths: Mapping[str, int]) -> Connections:
    """Returns the connections with other FIFO depths.

    Args:
        connections: links of a netlist.
        depths: depths in beats, by FIFO name; other FIFOs are unchanged.
    """
    links = [
        _deep(link, depths[link.name]) if link.module == FIFO and link.name in depths else link
        for link in connections.links
    ]
    return replace(connections, links=links)


def _deep(fifo: Link, depth: int) -> Link:
    parameters = {**fifo.parameters, "DEPTH": depth}
    return replace(fifo, parameters=parameters, memory_bits=depth * fifo.bits)


def _readers(netlist: Netlist, times: Schedule) -> dict[str, list[Reader]]:
    readers: dict[str, list[Reader]] = defaultdict(list)
    for instance in netlist.instances:
        lanes, wanted = instance.plan.lanes, times.depths[instance.name]
        for k, wire in enumerate(instance.inputs):
            reader = Reader(input_signal(instance, k), wire.stream, lanes[k], wanted[k])
            readers[wire.signal].append(reader)
    for port in netlist.outputs:
        stream = port.wire.stream
        reader = Reader(output_signal(port), stream, stream.lanes, 0)
        readers[port.wire.signal].append(reader)
    return readers


def _fork(signal: str, branches: Sequence[str], stream: Stream) -> Link:
    parameters = {"W": stream.bits, "N": len(branches)}
    name = f"{signal}_fork"
    return Link("chop_fork", name, parameters, signal, tuple(branches), stream.bits, stream.beats)


def _chain(source: str, reader: Reader) -> list[Link]:
    """Returns the links from a signal to a reader: converters, then a FIFO or a skid buffer."""
    stream, links = reader.stream, []
    common = math.gcd(stream.lanes, reader.lanes)
    # If one number of lanes divides the other, one of both converters has nothing to do.
    for lanes, module in ((common, "chop_downsize"), (reader.lanes, "chop_upsize")):
        if lanes != stream.lanes:
            parameters = {"W": stream.width, "IN_LANES": stream.lanes, "OUT_LANES": lanes}
            name = f"{reader.name}_{module.removeprefix('chop_')}"
            cycles = max(stream.beats, stream.size // lanes)
            stream = stream.with_lanes(lanes)
            links.append(Link(module, name, parameters, source, (name,), stream.bits, cycles))
            source = name
    return [*links, _buffer(source, reader, stream)]


def _buffer(source: str, reader: Reader, stream: Stream) -> Link:
    if reader.depth == DIRECT:
        wires = {"W": stream.bits}
        name, targets = f"{reader.name}_wires", (reader.name,)
        return Link("chop_wires", name, wires, source, targets, stream.bits, stream.beats)
    # Both kinds of buffer register `ready`. Without one, its combinational path would cross all
    # components up to the output.
    parameters, depth = {"W": stream.bits}, SKID_BEATS
    module = "chop_skid"
    if reader.depth > SKID_BEATS:
        module, depth = FIFO, reader.depth
        parameters["DEPTH"] = depth
    name, stored = f"{reader.name}_buffer", depth * stream.bits
    return Link(module, name, parameters, source, (reader.name,), stream.bits, stream.beats, stored)
