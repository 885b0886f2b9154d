"""Simulation top: a design, and a check of the protocol on each of its inner streams."""

from __future__ import annotations

import re
from collections.abc import Sequence

from chop.hardware.port import Port
from chop.hardware.templates import render
from chop.hardware.verilog import instance

SIMULATION = "chop_simulation"
"""Name of the module."""
CHECK = "chop_stream_check"
_REPORTED = r"^stream (\w+) broke the rules$"


def simulation_top(top: str, ports: Sequence[Port], streams: Sequence[tuple[str, int]]) -> str:
    """SystemVerilog of the module `SIMULATION`.

    Args:
        top: name of the module under test.
        ports: its streams; the simulation top has the same ones.
        streams: name and bits of inner streams: signals `NAME_data`, `NAME_valid`, `NAME_ready`.
    """
    head = ["input  logic clk_i", "input  logic rst_ni"]
    head += [line for port in ports for line in port.declaration()]
    head += [f"output logic [{violated_bits(streams) - 1}:0] violated_o"]
    names = ["clk_i", "rst_ni", *(signal for port in ports for signal in port.signals)]
    checks = [_check(number, *stream) for number, stream in enumerate(streams)]
    return render(
        "simulation.sv", top=top, module=SIMULATION, head=head, names=names, checks=checks
    )


def violated_bits(streams: Sequence[tuple[str, int]]) -> int:
    """Width of `violated_o`."""
    return max(1, len(streams))


def violated_streams(log: str) -> list[str]:
    """Names of the streams that broke the rules, of what a simulation printed.

    Verilator's driver reads `violated_o` instead.
    """
    return re.findall(_REPORTED, log, re.MULTILINE)


def _check(number: int, name: str, bits: int) -> dict[str, str]:
    pins = {"clk_i": "clk_i", "rst_ni": "rst_ni"}
    pins |= {f"{kind}_i": f"u_design.{name}_{kind}" for kind in ("data", "valid", "ready")}
    pins["violated_o"] = f"violated_o[{number}]"
    text = instance(CHECK, f"u_check_{number}", {"W": bits}, pins)
    return {"instance": text, "bit": pins["violated_o"], "name": name}


def ports_header(ports: Sequence[Port]) -> str:
    """C++ header of the driver: the class of the model and the names of its ports."""
    return render("ports.h", module=SIMULATION, ports=ports)
