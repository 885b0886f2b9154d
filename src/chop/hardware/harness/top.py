"""Simulation top module: a design with checkers on its inner streams and FIFO fill counters."""

from __future__ import annotations

import re
from collections.abc import Sequence

from chop.hardware.check.project import Fifo
from chop.hardware.design.port import Port
from chop.hardware.design.verilog import instance
from chop.hardware.templates import render

SIMULATION = "chop_simulation"
"""Module name."""
CHECK, FILL = "chop_stream_check", "chop_stream_fill"
FILL_BITS = 32
_REPORTED = r"^stream (\w+) broke the rules$"


def simulation_top(
    top: str,
    ports: Sequence[Port],
    streams: Sequence[tuple[str, int]],
    fifos: Sequence[Fifo] = (),
) -> str:
    """Returns the SystemVerilog of the module `SIMULATION`.

    Args:
        top: name of the module under test.
        ports: its streams; the simulation top has the same ports.
        streams: name and bits of inner streams: signals `NAME_data`, `NAME_valid`, `NAME_ready`.
        fifos: FIFOs with a fill counter.
    """
    head = ["input  logic clk_i", "input  logic rst_ni"]
    head += [line for port in ports for line in port.declaration()]
    head += [f"output logic [{violated_bits(streams) - 1}:0] violated_o"]
    head += [f"output logic [{fill_bits(fifos) - 1}:0] fills_o"]
    names = ["clk_i", "rst_ni", *(signal for port in ports for signal in port.signals)]
    checks = [_check(number, *stream) for number, stream in enumerate(streams)]
    fills = [_fill(number, fifo) for number, fifo in enumerate(fifos)]
    parts = {"head": head, "names": names, "checks": checks, "fills": fills}
    return render("simulation.sv", top=top, module=SIMULATION, **parts)


def violated_bits(streams: Sequence[tuple[str, int]]) -> int:
    """Returns the width of `violated_o`."""
    return max(1, len(streams))


def fill_bits(fifos: Sequence[Fifo]) -> int:
    """Returns the width of `fills_o`."""
    return FILL_BITS * max(1, len(fifos))


def violated_streams(log: str) -> list[str]:
    """Returns the names of streams with protocol violations from the output of a simulation.

    Verilator's driver reads `violated_o` instead.
    """
    return re.findall(_REPORTED, log, re.MULTILINE)


def _check(number: int, name: str, bits: int) -> dict[str, str]:
    pins = {"clk_i": "clk_i", "rst_ni": "rst_ni"}
    # Hierarchical names reach inner streams, so the design under test needs no additional ports.
    pins |= {f"{kind}_i": f"u_design.{name}_{kind}" for kind in ("data", "valid", "ready")}
    pins["violated_o"] = f"violated_o[{number}]"
    text = instance(CHECK, f"u_check_{number}", {"W": bits}, pins)
    return {"instance": text, "bit": pins["violated_o"], "name": name}


def _fill(number: int, fifo: Fifo) -> str:
    pins = {"clk_i": "clk_i", "rst_ni": "rst_ni"}
    for way, stream in (("in", fifo.source), ("out", fifo.target)):
        pins |= {f"{way}_{kind}_i": f"u_design.{stream}_{kind}" for kind in ("valid", "ready")}
    pins["most_o"] = f"fills_o[{FILL_BITS * number} +: {FILL_BITS}]"
    return instance(FILL, f"u_fill_{number}", {}, pins)


def ports_header(ports: Sequence[Port]) -> str:
    """Returns the C++ header of the driver: the model's class and its port names."""
    return render("ports.h", module=SIMULATION, ports=ports)
