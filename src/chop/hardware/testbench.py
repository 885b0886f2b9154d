"""Testbenches: self-checking SystemVerilog of a top with stream ports, and its run in Icarus."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from chop.errors import ChopError, UnavailableError
from chop.hardware.plan import Memory
from chop.hardware.port import Port
from chop.hardware.verilog import instance

PROFILES = ("none", "uniform", "slow_reader", "bursts")
"""Stalls of the testbench's streams, by the number of `+profile`: none; each stream moves in half
of the cycles; outputs are taken in one cycle of eight; pauses longer than a sample's row."""
VECTORS = "vectors"
"""Folder of the beats that are sent and expected, `NAME.hex` for each port."""
LONGEST_PAUSE = 256
IDLE_CYCLES = 10_000
"""After so many cycles without a beat the testbench gives up."""
RUN_SECONDS = 600

_TEXT = """\
// Self-checking testbench of {top}: sends {samples} samples of beats, and compares all that leave.
// Profiles of stalls: {profiles}. In the folder above this file's vectors:
//   iverilog -g2012 -s testbench -o testbench.vvp SOURCES && vvp testbench.vvp +profile=1 +seed=7
module testbench;
  logic clk = 1'b0;
  logic rst_n = 1'b0;
  int profile, seed, timeout;
  int cycle = 0, idle = 0, rest = 0;
{signals}
  wire moves = {moves};
  wire done = {done};
  wire failed = {failed};

{instances}
  initial begin
    if (!$value$plusargs("profile=%d", profile)) profile = 0;
    if (!$value$plusargs("seed=%d", seed)) seed = 1;
    if (!$value$plusargs("timeout=%d", timeout)) timeout = {timeout};
    repeat (8) #1 clk = ~clk;
    rst_n = 1'b1;
    forever #1 clk = ~clk;
  end

  // A beat too many shows in the cycles after the last one.
  always @(posedge clk) begin
    if (rst_n) cycle <= cycle + 1;
    idle <= (rst_n && !moves) ? idle + 1 : 0;
    if (done) rest <= rest + 1;
    if (failed || (idle > timeout && !done)) begin
      if (!failed) $display("timeout in cycle %0d: no beat moved for %0d cycles", cycle, timeout);
      $display("FAIL");
      $finish;
    end else if (done && rest >= {drain}) begin
      $display("PASS");
      $finish;
    end
  end
endmodule
"""


def testbench(top: str, ports: Sequence[Port], samples: int, timeout: int = IDLE_CYCLES) -> str:
    """Text of the module `testbench`.

    It prints each sample's last cycle, the first difference of each output, and PASS or FAIL.

    Args:
        top: name of the module under test, clocked by `clk_i` and reset by `rst_ni`.
        ports: its streams.
        samples: in the files of the folder `VECTORS`.
        timeout: cycles without a beat after which it fails.
    """
    outputs = [port for port in ports if not port.is_input]
    pause = min(2 + max(port.beats for port in ports), LONGEST_PAUSE)
    connections = {"clk_i": "clk", "rst_ni": "rst_n"}
    for port in ports:
        data, valid, ready = port.signals
        connections |= {data: port.name, valid: f"{port.name}_valid", ready: f"{port.name}_ready"}
    return _TEXT.format(
        top=top,
        samples=samples,
        profiles=", ".join(f"{number} {name}" for number, name in enumerate(PROFILES)),
        timeout=timeout,
        # Without inputs the samples are endless.
        drain=2 * pause if len(outputs) < len(ports) else 0,
        signals="\n".join(map(_signals, ports)),
        moves=" || ".join(f"({p.name}_valid && {p.name}_ready)" for p in ports),
        done=" && ".join(f"{port.name}_done" for port in outputs),
        failed=" || ".join(f"{port.name}_failed" for port in outputs),
        instances="\n".join(
            [instance(top, "u_top", {}, connections)]
            + [_end(port, number, samples, pause) for number, port in enumerate(ports)]
        ),
    )


def _signals(port: Port) -> str:
    text = f"  logic [{port.bits - 1}:0] {port.name};\n  logic {port.name}_valid, {port.name}_ready"
    return f"{text};" if port.is_input else f"{text}, {port.name}_done, {port.name}_failed;"


def _end(port: Port, number: int, samples: int, pause: int) -> str:
    """The source or the sink of a port."""
    name, beats = port.name, samples * port.beats
    common: dict[str, int | str] = {"FILE": f"{VECTORS}/{name}.hex", "STREAM": number}
    common |= {"PAUSE": pause, "BEATS": beats}
    wires = {"clk_i": "clk", "rst_ni": "rst_n", "profile_i": "profile", "seed_i": "seed"}
    if port.is_input:
        wires |= {"data_o": name, "valid_o": f"{name}_valid", "ready_i": f"{name}_ready"}
        return instance("chop_stream_source", f"u_{name}", common | {"W": port.bits}, wires)
    wires |= {"data_i": name, "valid_i": f"{name}_valid", "ready_o": f"{name}_ready"}
    wires |= {"cycle_i": "cycle", "done_o": f"{name}_done", "failed_o": f"{name}_failed"}
    common |= {"NAME": name, "W": port.width, "LANES": port.lanes, "PERIOD": port.beats}
    return instance("chop_stream_sink", f"u_{name}", common, wires)


def vectors(port: Port, beats: Tensor) -> str:
    """Text of a port's file in the folder `VECTORS`.

    Args:
        port: the port.
        beats: int64 (beats, lanes).
    """
    return Memory.of(beats.tolist(), port.width).hex()


@dataclass(frozen=True)
class BenchRun:
    """What a testbench printed.

    Attributes:
        passed: whether all that left was expected.
        left: for each output the cycle in which the last beat of each sample left.
        log: all lines.
    """

    passed: bool
    left: Mapping[str, Sequence[int]]
    log: str


def compile_testbench(folder: Path, files: Sequence[Path | str], program: str) -> None:
    """Compiles a testbench and its design for Icarus.

    Args:
        folder: to run in; relative paths start there.
        files: SystemVerilog.
        program: name of the file that is written.
    Raises:
        UnavailableError: Icarus is not installed.
        ChopError: a source has an error.
    """
    command = [_tool("iverilog"), "-g2012", "-s", "testbench", "-o", program, *map(str, files)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS)
    if done.returncode or done.stderr:
        raise ChopError(f"iverilog: {done.stderr or done.stdout}")


def run_testbench(folder: Path, program: str, profile: str = "none", seed: int = 1) -> BenchRun:
    """Runs a compiled testbench.

    Args:
        folder: of the vectors and the memories.
        program: what `compile_testbench` wrote.
        profile: of stalls, one of `PROFILES`.
        seed: of stalls.
    Raises:
        UnavailableError: Icarus is not installed.
    """
    plusargs = (f"+profile={PROFILES.index(profile)}", f"+seed={seed}")
    command = [_tool("vvp"), "-n", program, *plusargs]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS)
    log = done.stdout + done.stderr
    left: dict[str, list[int]] = {}
    for name, cycle in re.findall(r"^(\w+): sample \d+ left in cycle (\d+)$", log, re.MULTILINE):
        left.setdefault(name, []).append(int(cycle))
    return BenchRun(done.returncode == 0 and log.endswith("PASS\n"), left, log)


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise UnavailableError(f"{name} is not installed: apt-get install iverilog")
    return path
