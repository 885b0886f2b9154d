"""Connections between components: forks, converters of lanes, FIFOs and skid buffers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chop.hardware.design.netlist import Boundary, Instance, Netlist
from chop.hardware.design.stream import Stream
from chop.hardware.folds.fifo_depths import SKID_BEATS, Schedule, schedule

FIFO = "chop_fifo"
"""Module of what stores more than a skid buffer."""


@dataclass(frozen=True)
class Link:
    """An instance between components: it hands beats on.

    Attributes:
        module: SystemVerilog module.
        name: of the instance.
        parameters: of the module.
        source: signal that it reads.
        targets: signals that it writes, several of a fork.
        bits: of a beat that leaves.
        cycles: for a sample.
        memory_bits: that it stores.
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
    """An input of an instance, or a port out.

    Attributes:
        name: of the signal that it sees.
        stream: what it reads, as it is sent.
        lanes: that it wants.
        depth: beats of the FIFO that it wants.
    """

    name: str
    stream: Stream
    lanes: int
    depth: int


@dataclass(frozen=True)
class Connections:
    """What stands between the components of a netlist.

    Attributes:
        links: instances that hand beats on.
        streams: name and bits of every stream inside, those of components included.
        schedule: when beats travel.
    """

    links: Sequence[Link]
    streams: Sequence[tuple[str, int]]
    schedule: Schedule

    @property
    def interval(self) -> int:
        """Cycles between two samples: those of the slowest link."""
        return max((link.cycles for link in self.links), default=0)


def input_signal(instance: Instance, k: int) -> str:
    """Name of the signals that input `k` of an instance reads."""
    return f"{instance.name}_in_{k}"


def output_signal(port: Boundary) -> str:
    """Name of the signals that a port out shows."""
    return f"{port.name}_out"


def connect(netlist: Netlist) -> Connections:
    """Connects every reader with its producer.

    A value with several readers is forked; lanes are converted, by way of their greatest common
    divisor where neither divides the other; a FIFO or a skid buffer ends every connection, which
    cuts the combinational path of ready.
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
    """The same with other depths of FIFOs.

    Args:
        connections: of a netlist.
        depths: in beats, by the name of the FIFO; the others stay.
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
    found: dict[str, list[Reader]] = defaultdict(list)
    for instance in netlist.instances:
        lanes, wanted = instance.plan.lanes, times.depths[instance.name]
        for k, wire in enumerate(instance.inputs):
            reader = Reader(input_signal(instance, k), wire.stream, lanes[k], wanted[k])
            found[wire.signal].append(reader)
    for port in netlist.outputs:
        stream = port.wire.stream
        reader = Reader(output_signal(port), stream, stream.lanes, 0)
        found[port.wire.signal].append(reader)
    return found


def _fork(signal: str, branches: Sequence[str], stream: Stream) -> Link:
    parameters = {"W": stream.bits, "N": len(branches)}
    name = f"{signal}_fork"
    return Link("chop_fork", name, parameters, signal, tuple(branches), stream.bits, stream.beats)


def _chain(source: str, reader: Reader) -> list[Link]:
    """From a signal to a reader: converters, and a FIFO or a skid buffer."""
    stream, found = reader.stream, []
    common = math.gcd(stream.lanes, reader.lanes)
    for lanes, module in ((common, "chop_downsize"), (reader.lanes, "chop_upsize")):
        if lanes != stream.lanes:
            parameters = {"W": stream.width, "IN_LANES": stream.lanes, "OUT_LANES": lanes}
            name = f"{reader.name}_{module.removeprefix('chop_')}"
            cycles = max(stream.beats, stream.size // lanes)
            stream = stream.with_lanes(lanes)
            found.append(Link(module, name, parameters, source, (name,), stream.bits, cycles))
            source = name
    return [*found, _buffer(source, reader, stream)]


def _buffer(source: str, reader: Reader, stream: Stream) -> Link:
    parameters, depth = {"W": stream.bits}, SKID_BEATS
    module = "chop_skid"
    if reader.depth > SKID_BEATS:
        module, depth = FIFO, reader.depth
        parameters["DEPTH"] = depth
    name, stored = f"{reader.name}_buffer", depth * stream.bits
    return Link(module, name, parameters, source, (reader.name,), stream.bits, stream.beats, stored)
