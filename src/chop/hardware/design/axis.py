"""AXI4-Stream ports of a design: a module around its top module, and its connection in a bench.

Source: Arm, "AMBA AXI-Stream Protocol Specification" (IHI 0051B).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from chop.errors import ConfigError
from chop.hardware.design.design import Design
from chop.hardware.design.interface import describe_interface
from chop.hardware.design.port import Port
from chop.hardware.design.verilog import FOLDER, Name, instance, sources
from chop.hardware.templates import render

FRAME_ERROR = "frame_error"
"""Output that is high after a misplaced tlast of an input."""
WRAPPED = "wrapped_top"
"""Instance of the top module in the module around it. Instances in the top module begin with u_."""


def axis_name(port: Port) -> str:
    """Returns the prefix of a port's AXI4-Stream signals.

    >>> axis_name(Port("x", 1, 8, 1, True))
    's_axis_x'
    """
    return f"{'s' if port.is_input else 'm'}_axis_{port.name}"


def axis_signals(port: Port) -> list[tuple[str, int]]:
    """Returns the name and bits of each signal of an AXI4-Stream port."""
    axis, keep = axis_name(port), [] if port.is_input else [("tkeep", port.bytes)]
    sizes = [("tdata", 8 * port.bytes), *keep, ("tvalid", 1), ("tready", 1), ("tlast", 1)]
    return [(f"{axis}_{kind}", bits) for kind, bits in sizes]


def axis_checks(ports: Sequence[Port]) -> list[str]:
    """Returns the names of the bits of `axis_failed` in `axis_bench`, lowest first."""
    return [*map(axis_name, ports), FRAME_ERROR]


def with_axi_stream(design: Design) -> Design:
    """Returns the design with a module `TOP_axis` around its top module.

    Each port becomes an AXI4-Stream port: `s_axis_NAME_*` of an input, `m_axis_NAME_*` of an
    output. tdata has whole bytes. Outputs have tkeep and tlast, and inputs have tlast.

    Raises:
        ConfigError: if a component has the name of the module.
    """
    wrapper = f"{design.top}_axis"
    if f"rtl/{wrapper}.sv" in design.files:
        raise ConfigError(f"wrap: a component of the circuit is already named '{wrapper}'.")
    text = _wrapper(design, wrapper)
    library = {f"rtl/{name}": path.read_text() for name, path in sources(text).items()}
    files = {**design.files, **library, f"rtl/{wrapper}.sv": text}
    return replace(design, files=files, wrapper=wrapper)


def _wrapper(design: Design, wrapper: str) -> str:
    parameters = {FOLDER: Name(FOLDER)} if design.memories else {}
    pins = {"clk_i": "aclk", "rst_ni": "aresetn"}
    for port in design.ports:
        inner = (f"{port.name}_{kind}" for kind in ("data", "valid", "ready"))
        pins |= dict(zip(port.signals, inner, strict=True))
    inputs = [port for port in design.ports if port.is_input]
    numbers = {port.name: number for number, port in enumerate(inputs)}
    adapters = [_adapter(port, numbers.get(port.name, 0)) for port in design.ports]
    return render(
        "axis.sv",
        top=design.top,
        module=wrapper,
        parameters=parameters,
        folder=FOLDER,
        described=describe_interface(design.netlist),
        signals=axis_signals,
        inputs=len(inputs),
        instances="".join([*adapters, instance(design.top, WRAPPED, parameters, pins)]),
    )


def _adapter(port: Port, number: int) -> str:
    """Returns the instance between an AXI4-Stream port and a port of the top module."""
    axis, (outer, inner) = axis_name(port), "io" if port.is_input else "oi"
    pins = {"clk_i": "aclk", "rst_ni": "aresetn"}
    pins |= {f"{kind}_{outer}": f"{axis}_{kind}" for kind in ("tdata", "tvalid", "tlast")}
    pins |= {f"tready_{inner}": f"{axis}_tready", f"ready_{outer}": f"{port.name}_ready"}
    pins |= {f"{kind}_{inner}": f"{port.name}_{kind}" for kind in ("data", "valid")}
    if port.is_input:
        pins["error_o"] = f"errors[{number}]"
    else:
        pins["tkeep_o"] = f"{axis}_tkeep"
    module = "chop_axis_in" if port.is_input else "chop_axis_out"
    sizes = {"BITS": port.bits, "BEATS": port.beats}
    return instance(module, f"u_{port.name}", sizes, pins)


def bench_instance(
    top: str,
    ports: Sequence[Port],
    wrapper: str = "",
    clock: tuple[str, str] = ("clk_i", "rst_ni"),
    parameters: Mapping[str, int | str] | None = None,
) -> str:
    """Returns the instance `u_design` of a module under test, with signals named as in `top`.

    With a wrapper, adapters translate these signals into AXI4-Stream and set the bits of
    `axis_failed`, which `axis_checks` names. The padding of inputs is driven with ones.

    Args:
        top: name of the top module.
        ports: its streams.
        wrapper: name of the module with AXI4-Stream ports around it; empty for none.
        clock: names of the clock and the reset.
        parameters: parameters of the module under test.
    """
    if not wrapper:
        pins = dict(zip(("clk_i", "rst_ni"), clock, strict=True))
        pins |= {signal: signal for port in ports for signal in port.signals}
        return instance(top, "u_design", parameters or {}, pins)
    pins = dict(zip(("aclk", "aresetn"), clock, strict=True))
    pins[FRAME_ERROR] = f"axis_failed[{len(ports)}]"
    checks = []
    for number, port in enumerate(ports):
        _, valid, ready = port.signals
        wires = {kind: f"axis_{number}_{kind}" for kind in ("tdata", "tkeep", "tlast")}
        wires |= {"tvalid": valid, "tready": ready}
        pins |= {
            f"{axis_name(port)}_{kind}": wire
            for kind, wire in wires.items()
            if not (port.is_input and kind == "tkeep")
        }
        padding = 8 * port.bytes - port.bits
        if port.is_input and padding:
            pins[f"{axis_name(port)}_tdata"] = f"{{{{{padding}{{1'b1}}}}, {port.signals[0]}}}"
        checks.append(_check(port, number, wires, clock))
    instances = "".join([*checks, instance(wrapper, "u_design", parameters or {}, pins)])
    return render("axis_bench.sv", ports=ports, wrapper=wrapper, instances=instances)


def _check(port: Port, number: int, wires: Mapping[str, str], clock: tuple[str, str]) -> str:
    sizes: dict[str, int | str] = {"BITS": port.bits, "BEATS": port.beats, "NAME": axis_name(port)}
    pins = dict(zip(("clk_i", "rst_ni"), clock, strict=True))
    pins |= {f"{kind}_i": wire for kind, wire in wires.items()}
    pins |= {"last_o": f"axis_{number}_end", "violated_o": f"axis_failed[{number}]"}
    return instance("chop_stream_axis", f"u_axis_{number}", sizes, pins)
