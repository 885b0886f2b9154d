"""AXI ports of a design: a module around its top module, and its connection in a bench.

Source: Arm, "AMBA AXI-Stream Protocol Specification" (IHI 0051B), and "AMBA AXI and ACE Protocol
Specification" (IHI 0022H), chapter B1 (AXI4-Lite).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from chop.errors import ConfigError
from chop.hardware.design.design import Design
from chop.hardware.design.interface import describe_interface
from chop.hardware.design.load import WEIGHTS, WORD_BITS, window
from chop.hardware.design.port import Port
from chop.hardware.design.verilog import FOLDER, Name, instance, sources
from chop.hardware.templates import render

FRAME_ERROR = "frame_error"
"""Output that is high after a misplaced tlast of an input."""
WRAPPED = "wrapped_top"
"""Instance of the top module in the module around it. Instances in the top module begin with u_."""

SUFFIXES = {"axi-stream": "axis", "axi-lite": "axi_lite"}
"""End of the name of the module, by its kind."""
CONTROL = "s_axi"
"""Prefix of the AXI4-Lite signals."""
_ADDRESS = ("awaddr", "araddr")
_LITE = {
    "awaddr": 0,
    "awvalid": 1,
    "awready": -1,
    "wdata": WORD_BITS,
    "wstrb": WORD_BITS // 8,
    "wvalid": 1,
    "wready": -1,
    "bresp": -2,
    "bvalid": -1,
    "bready": 1,
    "araddr": 0,
    "arvalid": 1,
    "arready": -1,
    "rdata": -WORD_BITS,
    "rresp": -2,
    "rvalid": -1,
    "rready": 1,
}
"""Bits of the AXI4-Lite signals, below zero for outputs of the design, 0 for addresses."""


def has_control(wrapper: str) -> bool:
    """Returns whether a module around the top module has AXI4-Lite registers."""
    return wrapper.endswith(f"_{SUFFIXES['axi-lite']}")


def control_signals(words: int) -> dict[str, tuple[int, bool]]:
    """Returns bits and direction (True for inputs) of each AXI4-Lite signal."""
    address = window(words).bit_length()
    return {
        f"{CONTROL}_{name}": (address if name in _ADDRESS else abs(bits), bits >= 0)
        for name, bits in _LITE.items()
    }


def outer_signals(ports: Sequence[Port], wrapper: str) -> list[tuple[str, int]]:
    """Returns the name and bits of the signals of a wrapper, without clock, reset and errors.

    Args:
        ports: streams of the top module, with that of the weights.
        wrapper: name of the wrapper.
    """
    streams = [signal for port in _streams(ports, wrapper) for signal in axis_signals(port)]
    lite = control_signals(_words(ports)) if has_control(wrapper) else {}
    return streams + [(name, bits) for name, (bits, _) in lite.items()]


def _streams(ports: Sequence[Port], wrapper: str) -> list[Port]:
    """Returns the AXI4-Stream ports: the weights may enter through AXI4-Lite instead."""
    return [port for port in ports if port.name != WEIGHTS or not has_control(wrapper)]


def stream_ports(design: Design) -> list[Port]:
    """Returns the AXI4-Stream ports of a wrapped design."""
    return _streams(design.ends, design.wrapper)


def _words(ports: Sequence[Port]) -> int:
    return sum(port.beats for port in ports if port.name == WEIGHTS)


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


def axis_checks(ports: Sequence[Port], wrapper: str) -> list[str]:
    """Returns the names of the bits of `axis_failed` in `axis_bench`, lowest first."""
    lite = [CONTROL] * has_control(wrapper)
    return [*map(axis_name, _streams(ports, wrapper)), *lite, FRAME_ERROR]


def with_axi_ports(design: Design, kind: Literal["axi-stream", "axi-lite"]) -> Design:
    """Returns the design with a module `TOP_axis` or `TOP_axi_lite` around its top module.

    Each port becomes an AXI4-Stream port: `s_axis_NAME_*` of an input, `m_axis_NAME_*` of an
    output. tdata has whole bytes. Outputs have tkeep and tlast, and inputs have tlast. The kind
    axi-lite adds registers, which also take the weights, see `chop_axi_lite`.

    Raises:
        ConfigError: if a component has the name of the module.
    """
    wrapper = f"{design.top}_{SUFFIXES[kind]}"
    if f"rtl/{wrapper}.sv" in design.files:
        raise ConfigError(f"wrap: a component of the circuit is already named '{wrapper}'.")
    text = _wrapper(design, wrapper)
    library = {f"rtl/{name}": path.read_text() for name, path in sources(text).items()}
    files = {**design.files, **library, f"rtl/{wrapper}.sv": text}
    return replace(design, files=files, wrapper=wrapper)


def _wrapper(design: Design, wrapper: str) -> str:
    parameters = {FOLDER: Name(FOLDER)} if design.memories else {}
    ends = design.ends
    is_lite = has_control(wrapper)
    reset = "reset_n" if is_lite else "aresetn"
    pins = {"clk_i": "aclk", "rst_ni": reset}
    for port in ends:
        inner = (f"{port.name}_{kind}" for kind in ("data", "valid", "ready"))
        pins |= dict(zip(port.signals, inner, strict=True))
    streams = _streams(ends, wrapper)
    inputs = [port for port in streams if port.is_input]
    numbers = {port.name: number for number, port in enumerate(inputs)}
    instances = [_adapter(port, numbers.get(port.name, 0), reset) for port in streams]
    instances += [_control(ends)] * is_lite
    comments = {
        about.port.name: about.comment_lines() for about in describe_interface(design.netlist)
    }
    comments |= {} if design.load is None else {WEIGHTS: design.load.comment_lines()}
    return render(
        "axis.sv",
        top=design.top,
        module=wrapper,
        parameters=parameters,
        folder=FOLDER,
        described=[(port, comments[port.name]) for port in streams],
        inner=ends,
        control=control_signals(_words(ends)) if is_lite else {},
        window=window(_words(ends)),
        words=_words(ends),
        signals=axis_signals,
        inputs=len(inputs),
        instances="".join([*instances, instance(design.top, WRAPPED, parameters, pins)]),
    )


def _control(ends: Sequence[Port]) -> str:
    """Returns the instance with the AXI4-Lite registers."""
    first = next(axis_name(port) for port in ends if not port.is_input)
    pins = {"clk_i": "aclk", "rst_ni": "aresetn"}
    pins |= _lite_pins("io")
    is_loaded = any(port.name == WEIGHTS for port in ends)
    pins |= {
        "weights_o": "weights_data" if is_loaded else "no_weights",
        "weights_valid_o": "weights_valid" if is_loaded else "no_weights_valid",
        "weights_ready_i": "weights_ready" if is_loaded else "1'b0",
        "sample_i": f"{first}_tvalid && {first}_tready && {first}_tlast",
        "error_i": FRAME_ERROR,
        "rst_no": "reset_n",
    }
    words = _words(ends)
    return instance("chop_axi_lite", "u_control", {"WORDS": words, "WINDOW": window(words)}, pins)


def _lite_pins(ends: str) -> dict[str, str]:
    """Returns the AXI4-Lite connections of an instance whose inputs and outputs end so."""
    return {f"{name}_{ends[bits < 0]}": f"{CONTROL}_{name}" for name, bits in _LITE.items()}


def _adapter(port: Port, number: int, reset: str) -> str:
    """Returns the instance between an AXI4-Stream port and a port of the top module."""
    axis, (outer, inner) = axis_name(port), "io" if port.is_input else "oi"
    pins = {"clk_i": "aclk", "rst_ni": reset}
    pins |= {f"{kind}_{outer}": f"{axis}_{kind}" for kind in ("tdata", "tvalid", "tlast")}
    pins |= {f"tready_{inner}": f"{axis}_tready", f"ready_{outer}": f"{port.name}_ready"}
    pins |= {f"{kind}_{inner}": f"{port.name}_{kind}" for kind in ("data", "valid")}
    if port.is_input:
        if reset != "aresetn":
            # The source is not in this reset: beats that were taken during it would be lost.
            pins["ready_i"] += f" && {reset}"
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
    streams, is_lite = _streams(ports, wrapper), has_control(wrapper)
    count = len(axis_checks(ports, wrapper))
    pins[FRAME_ERROR] = f"axis_failed[{count - 1}]"
    checks = [_writer(ports, count - 2, clock)] * is_lite
    if is_lite:
        pins |= {name: name for name in control_signals(_words(ports))}
    for number, port in enumerate(streams):
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
    return render(
        "axis_bench.sv",
        ports=streams,
        last=count - 1,
        control=control_signals(_words(ports)) if is_lite else {},
        wrapper=wrapper,
        instances=instances,
    )


def _writer(ports: Sequence[Port], bit: int, clock: tuple[str, str]) -> str:
    """Returns the instance that writes the weights through AXI4-Lite and reads the registers."""
    words = _words(ports)
    pins = dict(zip(("clk_i", "rst_ni"), clock, strict=True)) | _lite_pins("oi")
    names = [port.signals for port in ports if port.name == WEIGHTS]
    data, valid, ready = names[0] if names else ("32'b0", "1'b0", "no_weights_ready")
    pins |= {"data_i": data, "valid_i": valid, "ready_o": ready}
    pins["violated_o"] = f"axis_failed[{bit}]"
    sizes = {"WORDS": words, "WINDOW": window(words)}
    text = instance("chop_stream_axi_lite", "u_control", sizes, pins)
    return text if names else f"  logic no_weights_ready;\n{text}"


def _check(port: Port, number: int, wires: Mapping[str, str], clock: tuple[str, str]) -> str:
    sizes: dict[str, int | str] = {"BITS": port.bits, "BEATS": port.beats, "NAME": axis_name(port)}
    pins = dict(zip(("clk_i", "rst_ni"), clock, strict=True))
    pins |= {f"{kind}_i": wire for kind, wire in wires.items()}
    pins |= {"last_o": f"axis_{number}_end", "violated_o": f"axis_failed[{number}]"}
    return instance("chop_stream_axis", f"u_axis_{number}", sizes, pins)
