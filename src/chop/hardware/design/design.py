"""SystemVerilog design of an integer graph: sources, memories and interfaces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from chop.errors import ConfigError
from chop.hardware.design.connect import (
    FIFO,
    Connections,
    Link,
    connect,
    input_signal,
    output_signal,
    with_depths,
)
from chop.hardware.design.instances import Instance, Netlist
from chop.hardware.design.interface import PortDescription, describe_interface
from chop.hardware.design.load import Load, loadable, memory_suffix
from chop.hardware.design.plan import NO_LOAD, RTL, Memory, has_load_port
from chop.hardware.design.port import Port
from chop.hardware.design.verilog import FOLDER, FileIn, instance, read_source, sources
from chop.hardware.settings import TOP

CLOCKED = {"clk_i": "clk_i", "rst_ni": "rst_ni"}
RUNS = "runs"
"""Reset of the components, active low, and end of the loading, in a circuit with a loader."""
LOAD = "load"
"""Writes of the loader, which `chop_ram` explains."""
LOADER = """\
  // Components stay in reset, and inputs wait, until all words of the weights are written.
  logic [56:0] load;
  logic runs;
"""
_NOT_IN_COMMENTS = re.compile(r"[^\w.]", re.ASCII)
PROTOCOL = """\
// Hold rst_ni low for four cycles. A beat moves at a rising edge of clk_i with valid and ready
// high. Element p of an order is in lane p % lanes of beat p // lanes.
"""
"""Comment above the top module."""


@dataclass(frozen=True, eq=False)
class Design:
    """SystemVerilog and memory files of a circuit.

    Attributes:
        top: name of the top module.
        ports: input and output streams, inputs first.
        files: text by project path: `rtl/*.sv` and `memory/*.hex`.
        streams: name and bits of inner streams, whose signals are in the top module.
        netlist: source of the design.
        connections: links between the components.
        wrapper: name of a module around the top module, with AXI ports; empty for none.
        load: weights that are written at run time; None if all are fixed.
    """

    top: str
    ports: tuple[Port, ...]
    files: Mapping[str, str]
    streams: tuple[tuple[str, int], ...]
    netlist: Netlist
    connections: Connections
    wrapper: str = ""
    load: Load | None = None

    @property
    def ends(self) -> list[Port]:
        """All streams of the top module: its ports, and the words of weights behind them."""
        return [*self.ports, *([] if self.load is None else [self.load.port])]

    @property
    def fifos(self) -> list[Link]:
        """FIFOs between components."""
        return [link for link in self.connections.links if link.module == FIFO]

    @property
    def memories(self) -> list[str]:
        """Paths of the memory files that the design reads."""
        return [path for path in self.files if path.endswith(".hex")]

    @property
    def interval(self) -> int:
        """Cycles between two samples without stalls, those of the slowest part."""
        return max(self.netlist.interval, self.connections.interval)


def build_design(netlist: Netlist, top: str = TOP) -> Design:
    """Writes a netlist as SystemVerilog."""
    connections, load = connect(netlist), loadable(netlist.instances)
    ports = [Port.of(port.name, port.wire.stream, True) for port in netlist.inputs]
    ports += [Port.of(port.name, port.wire.stream, False) for port in netlist.outputs]
    text = _top(netlist, connections, ports, top, load)
    files = {top_path(top): text}
    if top in {part.module for part in netlist.instances}:
        raise ConfigError(
            f"hardware: the top module cannot have the name of its component '{top}'."
        )
    homes: dict[str, Path] = {}
    for folder in sorted({RTL, *(part.folder for part in netlist.instances)}):
        for name, path in sources(text, folder).items():
            source = read_source(path)
            # A plug-in can bring a module with a name of the library; two sources of one name do
            # not compile.
            if files.setdefault(f"rtl/{name}", source) != source:
                raise ConfigError(
                    f"hardware: the module of {name} has two sources, '{homes[name]}' and "
                    f"'{path}': rename one."
                )
            homes[name] = path
    for part in netlist.instances:
        if part.plan.source:
            files[f"rtl/{part.module}.sv"] = part.plan.source
        for parameter, memory in _fixed(part).items():
            files[_memory_path(part, parameter)] = memory.hex()
    streams = tuple(connections.streams)
    return Design(top, tuple(ports), files, streams, netlist, connections, load=load)


def with_fifo_depths(design: Design, depths: Mapping[str, int]) -> Design:
    """Returns the design with other FIFO depths; only its top module changes.

    Args:
        design: the circuit.
        depths: depths in beats, by FIFO name; other FIFOs are unchanged.
    """
    connections = with_depths(design.connections, depths)
    text = _top(design.netlist, connections, list(design.ports), design.top, design.load)
    files = {**design.files, top_path(design.top): text}
    return replace(design, files=files, connections=connections)


def top_path(top: str) -> str:
    """Returns the project path of the top module."""
    return f"rtl/{top}.sv"


def _memory_path(part: Instance, parameter: str) -> str:
    return f"memory/{part.name}_{memory_suffix(parameter)}.hex"


def _fixed(part: Instance) -> dict[str, Memory]:
    """Returns the read-only memories of an instance by parameter."""
    return {name: each for name, each in part.plan.memories.items() if not each.is_loadable}


def _top(
    netlist: Netlist, connections: Connections, ports: list[Port], top: str, load: Load | None
) -> str:
    """Returns the text of the top module."""
    parts = len(netlist.instances)
    interval = max(netlist.interval, connections.interval)
    declared = [line for about in describe_interface(netlist) for line in _documented(about)]
    head = ["input  logic clk_i", "input  logic rst_ni", *declared]
    if load is not None:
        head += load.declaration()
    has_memories = any(_fixed(part) for part in netlist.instances)
    lines = [f"// {parts} components; a sample every {interval} cycles without stalls.\n"]
    lines.append(PROTOCOL)
    if has_memories:
        lines.append(f"// Memory files are in {FOLDER}, the project folder.\n")
    parameter = f' #(\n  parameter {FOLDER} = "."\n)' if has_memories else ""
    lines.append(f"module {top}{parameter} (\n  " + ",\n  ".join(head) + "\n);\n")
    for name, bits in connections.streams:
        lines.append(f"  logic [{bits - 1}:0] {name}_data;\n  logic {name}_valid, {name}_ready;\n")
    lines += _loader(load)
    lines += _assignments(netlist, ports, load)
    lines += [_link(link, load) for link in connections.links]
    lines += _components(netlist, load)
    return "".join([*lines, "endmodule\n"])


def _documented(about: PortDescription) -> list[str]:
    """Returns the declaration of a port, with a comment that describes its codes."""
    first, *others = about.port.declaration()
    return ["\n  ".join([*about.comment_lines(), first]), *others]


def _loader(load: Load | None) -> Iterator[str]:
    """Yields the instance that takes the words of weights."""
    if load is not None:
        data, valid, ready = load.port.signals
        pins = {**CLOCKED, "weights_i": data, "weights_valid_i": valid, "weights_ready_o": ready}
        pins |= {"load_o": LOAD, "runs_o": RUNS}
        yield LOADER + instance("chop_load", f"u_{LOAD}", {"WORDS": load.port.beats}, pins)


def _clocked(load: Load | None) -> dict[str, str]:
    """Returns the clock and reset of components and of the links between them."""
    return {**CLOCKED, "rst_ni": RUNS} if load is not None else dict(CLOCKED)


def _assignments(netlist: Netlist, ports: list[Port], load: Load | None) -> Iterator[str]:
    """Returns the assignments between ports and their inner streams."""
    signals = [port.wire.signal for port in netlist.inputs]
    signals += [output_signal(port) for port in netlist.outputs]
    for port, signal in zip(ports, signals, strict=True):
        inside = [f"{signal}_{kind}" for kind in ("data", "valid", "ready")]
        for number, (outer, inner) in enumerate(zip(port.signals, inside, strict=True)):
            # `ready`, number 2, has the opposite direction of data and valid.
            enters = port.is_input != (number == 2)
            left, right = (inner, outer) if enters else (outer, inner)
            waits = f" && {RUNS}" * (load is not None and port.is_input and number > 0)
            yield f"  assign {left} = {right}{waits};\n"


def _link(link: Link, load: Load | None) -> str:
    pins = {**_clocked(load), **_pins("in", 0, link.source)}
    if len(link.targets) == 1:
        pins |= _pins("out", 0, link.targets[0])
        return instance(link.module, f"u_{link.name}", link.parameters, pins)
    shared = f"{link.name}_data"
    pins |= {
        "data_out_o": shared,
        "data_out_valid_o": _vector(link.targets, "valid"),
        "data_out_ready_i": _vector(link.targets, "ready"),
    }
    lines = [f"  logic [{link.bits - 1}:0] {shared};\n"]
    lines += [f"  assign {target}_data = {shared};\n" for target in link.targets]
    return "".join([*lines, instance(link.module, f"u_{link.name}", link.parameters, pins)])


def _vector(targets: tuple[str, ...], kind: str) -> str:
    # A SystemVerilog concatenation begins with its highest bit; bit 0 belongs to the first target.
    return "{" + ", ".join(f"{target}_{kind}" for target in reversed(targets)) + "}"


def _components(netlist: Netlist, load: Load | None) -> Iterator[str]:
    """Yields the instances, with a comment wherever another module of the model begins."""
    owner = None
    for part in netlist.instances:
        parent, _, name = _NOT_IN_COMMENTS.sub("_", part.path).rpartition(".")
        if part.path and parent != owner:
            owner = parent
            yield f"\n  // Module {owner or 'of the model'}\n"
        yield f"  // Layer {name}: {part.kind}\n" if name else f"  // {part.kind}\n"
        yield _component(part, load)


def _component(part: Instance, load: Load | None) -> str:
    parameters = dict(part.plan.parameters)
    parameters |= {name: FileIn(_memory_path(part, name)) for name in _fixed(part)}
    bases = {} if load is None else load.parameters(part.name)
    pins = _clocked(load)
    if has_load_port(part.module, part.folder, part.plan.source):
        pins |= {"load_i": LOAD} if bases else NO_LOAD
    parameters |= bases
    for k in range(len(part.inputs)):
        pins |= _pins("in", k, input_signal(part, k))
    pins |= _pins("out", 0, part.name)
    return instance(part.module, f"u_{part.name}", parameters, pins)


def _pins(way: str, k: int, signal: str) -> dict[str, str]:
    """Returns the pin connections of `data_in_K` or `data_out_K`."""
    ahead, back = ("i", "o") if way == "in" else ("o", "i")
    return {
        f"data_{way}_{k}_{ahead}": f"{signal}_data",
        f"data_{way}_{k}_valid_{ahead}": f"{signal}_valid",
        f"data_{way}_{k}_ready_{back}": f"{signal}_ready",
    }
