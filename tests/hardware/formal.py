"""Bounded formal checks of stream components by yosys-smtbmc and z3.

A miter has two instances of a component. Both start in any state, have one cycle of reset, and get
the same beats, which are any. Each port of the first instance may pause in any cycles, up to a
number. The second instance never waits.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chop.hardware.design.plan import RTL, Memory
from chop.hardware.design.port import Port
from chop.hardware.design.verilog import instance, sources
from chop.hardware.tools import read_command, tool_path

SECONDS = 1200
"""Time limit of Yosys and of the solver."""
PLACES = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
"""Folders of programs, with that of `pip install z3-solver` in this environment."""

DRIVERS = """
module formal_source #(parameter int W = 1, parameter int N = 1, parameter bit PAUSES = 0) (
  input logic clk_i, input logic rst_ni, input logic is_free_i, input logic [N*W-1:0] beats_i,
  output logic [W-1:0] data_o, output logic valid_o, input logic ready_i);
  localparam int COUNT_W = $clog2(N + 1);
  (* anyseq *) reg pause;
  (* anyseq *) reg [W-1:0] noise;
  reg [COUNT_W-1:0] at_q;
  reg waits_q;
  assign valid_o = at_q < COUNT_W'(N) && (waits_q || !(PAUSES && is_free_i && pause));
  assign data_o = valid_o ? beats_i[at_q*W +: W] : noise;
  always @(posedge clk_i) begin
    if (!rst_ni) at_q <= '0;
    else if (valid_o && ready_i) at_q <= at_q + COUNT_W'(1);
    waits_q <= rst_ni && valid_o && !ready_i;
  end
endmodule

module formal_sink #(parameter int W = 1, parameter int N = 1, parameter bit PAUSES = 0,
                     parameter bit ENDLESS = 0) (
  input logic clk_i, input logic rst_ni, input logic is_free_i, input logic is_last_i,
  input logic [N*W-1:0] expected_i, input logic [N-1:0] known_i,
  input logic [W-1:0] data_i, input logic valid_i, output logic ready_o,
  output logic [N*W-1:0] beats_o, output logic [N-1:0] known_o);
  localparam int COUNT_W = $clog2(N + 1);
  (* anyseq *) reg pause;
  reg [COUNT_W-1:0] came_q;
  reg [N*W-1:0] beats_q;
  reg [W-1:0] data_q;
  reg waits_q;
  wire is_new = valid_i && came_q < COUNT_W'(N);
  assign ready_o = !(PAUSES && is_free_i && pause);
  for (genvar k = 0; k < N; k++) begin : g_beat
    wire is_here = is_new && came_q == COUNT_W'(k);
    assign beats_o[k*W +: W] = is_here ? data_i : beats_q[k*W +: W];
    assign known_o[k] = is_here || came_q > COUNT_W'(k);
    always @(posedge clk_i) beats_q[k*W +: W] <= beats_o[k*W +: W];
  end
  always @(posedge clk_i) begin
    data_q <= data_i;
    waits_q <= rst_ni && valid_i && !ready_o;
    if (!rst_ni) came_q <= '0;
    else if (is_new && ready_o) came_q <= came_q + COUNT_W'(1);
  end
  always @* if (rst_ni) begin
    if (waits_q) valid_stays: assert (valid_i);
    if (waits_q) data_stay: assert (data_i == data_q);
    if (is_new) beat_is_not_early: assert (known_i[came_q]);
    if (is_new) beat_is_right: assert (data_i == expected_i[came_q*W +: W]);
    if (!ENDLESS && valid_i) no_beat_too_many: assert (came_q < COUNT_W'(N));
    if (is_last_i) no_beat_is_lost: assert (came_q == COUNT_W'(N));
  end
endmodule
"""


@dataclass(frozen=True)
class Proof:
    """A component and the bounds of its check.

    Attributes:
        module: module that is checked.
        parameters: its parameters.
        ports: its streams; `beats` is the number of beats that are sent or have to come.
        free: number of cycles in which ports may pause, the one of reset included.
        depth: number of cycles; all beats have left by then.
        order: for outputs without arithmetic, their beats: (input, beat), or the code of a constant
            beat. Empty if both instances are compared instead.
        memories: contents of read-only memories by parameter.
        wrapper: text of a module with the ports, if those of the module are others.
        is_endless: beats follow the last one.
    """

    module: str
    parameters: Mapping[str, int | str]
    ports: Sequence[Port]
    free: int
    depth: int
    order: Sequence[tuple[int, int] | int] = ()
    memories: Mapping[str, Memory] = field(default_factory=dict)
    wrapper: str = ""
    is_endless: bool = False

    def text(self) -> str:
        """Returns the miter and the drivers."""
        lines = [
            "module formal (input logic clk_i);",
            "  reg [7:0] step_q = 0;",
            "  always @(posedge clk_i) step_q <= step_q + 8'd1;",
            "  wire rst_ni = step_q != 0;",
            f"  wire is_free = step_q < {self.free};",
            f"  wire is_last = step_q == {self.depth - 1};",
        ]
        for port in self.ports:
            size = port.bits * port.beats
            if port.is_input:
                lines.append(f"  (* anyconst *) reg [{size - 1}:0] {port.name};")
            else:
                lines.append(self._expected(port, size))
        sides = [("a", 1)] if self.order else [("a", 1), ("b", 0)]
        for side, pauses in sides:
            lines += self._side(side, pauses)
        return "\n".join([*lines, "endmodule", DRIVERS, self.wrapper])

    def _side(self, side: str, pauses: int) -> list[str]:
        """Returns an instance with its drivers."""
        lines, clocked = [], {"clk_i": "clk_i", "rst_ni": "rst_ni"}
        wires = dict(clocked)
        for port in self.ports:
            data, valid, ready = (f"{side}_{signal}" for signal in port.signals)
            wires |= dict(zip(port.signals, (data, valid, ready), strict=True))
            lines.append(f"  wire [{port.bits - 1}:0] {data}; wire {valid}, {ready};")
            values = {"W": port.bits, "N": port.beats, "PAUSES": pauses}
            links = {**clocked, "is_free_i": "is_free"}
            if port.is_input:
                links |= {"beats_i": port.name, "data_o": data, "valid_o": valid, "ready_i": ready}
                lines.append(instance("formal_source", f"u_{side}_{port.name}", values, links))
                continue
            values["ENDLESS"] = int(self.is_endless)
            links |= {"is_last_i": "is_last", "data_i": data, "valid_i": valid, "ready_o": ready}
            expected, known = f"{port.name}_expected", f"{port.name}_known"
            links |= {"expected_i": expected, "known_i": known}
            # The instance that never waits says what is expected of the other one.
            if not pauses:
                links |= {"beats_o": expected, "known_o": known}
            lines.append(instance("formal_sink", f"u_{side}_{port.name}", values, links))
        files = {name: f"{name.lower()}.hex" for name in self.memories}
        parameters = {} if self.wrapper else {**self.parameters, **files}
        module = "formal_wrapper" if self.wrapper else self.module
        return [*lines, instance(module, f"u_{side}", parameters, wires)]

    def _expected(self, port: Port, size: int) -> str:
        """Returns the wires of the expected beats of an output."""
        head = f"  wire [{size - 1}:0] {port.name}_expected"
        known = f"  wire [{port.beats - 1}:0] {port.name}_known"
        if not self.order:
            return f"{head};\n{known};"
        inputs = [each for each in self.ports if each.is_input]
        beats = [
            f"{port.bits}'d{beat}"
            if isinstance(beat, int)
            else f"{inputs[beat[0]].name}[{beat[1] * port.bits} +: {port.bits}]"
            for beat in reversed(self.order)
        ]
        return f"{head} = {{{', '.join(beats)}}};\n{known} = '1;"


def z3_path() -> str | None:
    """Returns the path of z3; None if it is not installed."""
    return shutil.which("z3", path=PLACES)


def failed_assertions(proof: Proof, folder: Path, source: Path = RTL) -> str:
    """Returns the lines of yosys-smtbmc that name a failed assertion; empty if all hold.

    Args:
        proof: component and bounds.
        folder: empty folder.
        source: folder of the module.
    """
    text = proof.text()
    (folder / "formal.sv").write_text(text)
    for name, memory in proof.memories.items():
        (folder / f"{name.lower()}.hex").write_text(memory.hex())
    files = [str(path) for path in sources(text, source).values()]
    steps = [
        read_command([*files, "formal.sv"], "-formal -defer"),
        "prep -top formal",
        "flatten",
        "memory_map",
        "opt -full",
        "dffunmap",
        "setundef -anyseq",
        "write_smt2 -wires formal.smt2",
    ]
    script = [tool_path("yosys"), "-q", "-p", "; ".join(steps)]
    done = subprocess.run(script, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    span = f"0:{proof.depth}:{proof.depth}"
    options = ["-s", "z3", "--unroll", "--noincr", "--noprogress", "-t", span]
    command = [tool_path("yosys-smtbmc"), *options]
    environment = {**os.environ, "PATH": PLACES}
    done = subprocess.run(
        [*command, "formal.smt2"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment,
    )
    if "Status: PASSED" in done.stdout:
        return ""
    lines = [line for line in done.stdout.splitlines() if "Assert failed" in line]
    assert lines, done.stdout + done.stderr
    return "\n".join(lines)
