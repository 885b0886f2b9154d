"""Simulation top module: a design with checkers on its inner streams and FIFO fill counters."""

from __future__ import annotations

import re
from collections.abc import Sequence

from chop.hardware.check.project import Fifo, Project
from chop.hardware.design.axis import WRAPPED, axis_checks, bench_instance
from chop.hardware.design.port import Port
from chop.hardware.design.verilog import instance
from chop.hardware.templates import render

SIMULATION = "chop_simulation"
"""Module name."""
CHECK, FILL = "chop_stream_check", "chop_stream_fill"
AXI = ("chop_stream_axis", "chop_stream_axi_lite")
"""Checkers of the ports of a wrapper."""
FILL_BITS = 32
_REPORTED = r"^stream (\w+) broke the rules$"


def simulation_top(project: Project, fifos: Sequence[Fifo] = ()) -> str:
    """Returns the SystemVerilog of the module `SIMULATION`.

    It has the ports of the top module. A module with AXI4-Stream ports around that is tested with
    it.

    Args:
        project: the project under test.
        fifos: FIFOs with a fill counter.
    """
    top, ports, wrapper = project.top, project.ends, project.wrapper
    design = f"u_design.{WRAPPED}" if wrapper else "u_design"
    head = ["input  logic clk_i", "input  logic rst_ni"]
    head += [line for port in ports for line in port.declaration()]
    head += [f"output logic [{violated_bits(project) - 1}:0] violated_o"]
    head += [f"output logic [{fill_bits(fifos) - 1}:0] fills_o"]
    checks = [_check(design, number, *stream) for number, stream in enumerate(project.streams)]
    fills = [_fill(design, number, fifo) for number, fifo in enumerate(fifos)]
    parts = {"head": head, "checks": checks, "fills": fills}
    parts |= {"design": bench_instance(top, ports, wrapper), "bits": violated_bits(project)}
    axis = len(axis_checks(ports, wrapper)) if wrapper else 0
    return render("simulation.sv", top=wrapper or top, module=SIMULATION, axis=axis, **parts)


def checked_names(project: Project) -> list[str]:
    """Returns the names of the bits of `violated_o`: inner streams, then AXI4-Stream ports."""
    names = [name for name, _ in project.streams]
    return names + (axis_checks(project.ends, project.wrapper) if project.wrapper else [])


def violated_bits(project: Project) -> int:
    """Returns the width of `violated_o`."""
    return max(1, len(checked_names(project)))


def fill_bits(fifos: Sequence[Fifo]) -> int:
    """Returns the width of `fills_o`."""
    return FILL_BITS * max(1, len(fifos))


def violated_streams(log: str) -> list[str]:
    """Returns the names of streams with protocol violations from the output of a simulation.

    Verilator's driver reads `violated_o` instead.
    """
    return re.findall(_REPORTED, log, re.MULTILINE)


def _check(design: str, number: int, name: str, bits: int) -> dict[str, str]:
    pins = {"clk_i": "clk_i", "rst_ni": "rst_ni"}
    # Hierarchical names reach inner streams, so the design under test needs no additional ports.
    pins |= {f"{kind}_i": f"{design}.{name}_{kind}" for kind in ("data", "valid", "ready")}
    pins["violated_o"] = f"violated_o[{number}]"
    text = instance(CHECK, f"u_check_{number}", {"W": bits}, pins)
    return {"instance": text, "bit": pins["violated_o"], "name": name}


def _fill(design: str, number: int, fifo: Fifo) -> str:
    pins = {"clk_i": "clk_i", "rst_ni": "rst_ni"}
    for way, stream in (("in", fifo.source), ("out", fifo.target)):
        pins |= {f"{way}_{kind}_i": f"{design}.{stream}_{kind}" for kind in ("valid", "ready")}
    pins["most_o"] = f"fills_o[{FILL_BITS * number} +: {FILL_BITS}]"
    return instance(FILL, f"u_fill_{number}", {}, pins)


def ports_header(ports: Sequence[Port]) -> str:
    """Returns the C++ header of the driver: the model's class and its port names."""
    return render("ports.h", module=SIMULATION, ports=ports)
