"""Test bench of a SystemVerilog component in Icarus Verilog."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from torch import Tensor

from chop.hardware import tools
from chop.hardware.check.profiles import PROFILES as ALL_PROFILES
from chop.hardware.check.testbench import (
    VECTORS,
    BenchRun,
    compile_testbench,
    run_testbench,
    testbench,
    vectors,
)
from chop.hardware.design.plan import RTL, Memory
from chop.hardware.design.port import Port
from chop.hardware.design.verilog import instance, read_source, sources

PROFILES = tuple(profile.name for profile in ALL_PROFILES)
"""Names of the stall profiles."""
CLOCKED = {"clk_i": "clk_i", "rst_ni": "rst_ni"}


@dataclass(frozen=True)
class Bench:
    """Test bench: module, input beats and expected output beats.

    Attributes:
        module: name of the module.
        parameters: parameters of the module by name.
        beats: int64 (samples * beats, lanes) for each port.
        memories: memory contents by file.
        folder: source folder, searched before the library.
        is_beat_by_beat: stores the cycle of each beat in `BenchRun.ends`, instead of each sample's
            last beat.
        source: text of the module, if it is in no folder.
        tied: expressions of further inputs of the module.
    """

    module: str
    parameters: Mapping[str, int | str]
    beats: Mapping[Port, Tensor]
    memories: Mapping[str, Memory] = field(default_factory=dict)
    folder: Path = RTL
    is_beat_by_beat: bool = False
    source: str = ""
    tied: Mapping[str, str] = field(default_factory=dict)

    def top(self) -> str:
        """Returns a top module with one instance."""
        connections = {**CLOCKED, **self.tied}
        connections |= {s: s for port in self.beats for s in port.signals}
        body = instance(self.module, "u_operator", self.parameters, connections)
        return f"{_head(self.beats)}{body}endmodule\n"

    def top_with_reset(self) -> str:
        """Returns a top module whose instance is reset once before the test begins.

        The simulation takes `+reset_at=N`, the cycles until the reset, and `+reset_for=N`, its
        length. The streams in offer beats from the first cycle on, also during the reset.
        """
        lines = ["  int reset_at, reset_for, count_q = 0;\n  wire is_early = count_q < reset_at;\n"]
        lines += ["  wire is_live = count_q == reset_at + reset_for;\n  initial begin\n"]
        lines += ['    if (!$value$plusargs("reset_at=%d", reset_at)) reset_at = 0;\n']
        lines += ['    if (!$value$plusargs("reset_for=%d", reset_for)) reset_for = 1;\n  end\n']
        lines += ["  always @(posedge clk_i) if (rst_ni && !is_live) count_q <= count_q + 1;\n"]
        connections = {**CLOCKED, **self.tied, "rst_ni": "(rst_ni && (is_early || is_live))"}
        for port, beats in self.beats.items():
            text, wires = _early_input(port, len(beats)) if port.is_input else _early_output(port)
            lines.append(text)
            connections |= wires
        body = instance(self.module, "u_operator", self.parameters, connections)
        return f"{_head(self.beats)}{''.join(lines)}{body}endmodule\n"

    @contextmanager
    def compiled(self, top: str | None = None) -> Iterator[CompiledBench]:
        """Context manager of the compiled bench in a temporary folder.

        Args:
            top: text of the top module. Default: `top()`.
        """
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            yield CompiledBench(work, self.write(work, self.top() if top is None else top))

    def write(self, work: Path, top: str) -> list[Path | str]:
        """Writes sources, memories and vectors, and returns the source files of the design.

        Args:
            work: empty folder.
            top: text of the top module.
        """
        (work / VECTORS).mkdir()
        (work / "memory").mkdir()
        (work / "top.sv").write_text(top)
        for file, memory in self.memories.items():
            (work / file).write_text(memory.hex())
        samples = 1
        for port, beats in self.beats.items():
            samples = len(beats) // port.beats
            assert len(beats) == samples * port.beats and beats.shape[1] == port.lanes
            (work / VECTORS / f"{port.name}.hex").write_text(vectors(port, beats))
        text = testbench("top", list(self.beats), samples, is_beat_by_beat=self.is_beat_by_beat)
        (work / "testbench.sv").write_text(text)
        files: list[Path | str] = []
        for name, path in sources(top, self.folder).items():
            files.append(path.absolute() if path.parent == RTL else name)
            if path.parent != RTL:
                (work / name).write_text(read_source(path))
        if self.source:
            (work / f"{self.module}.sv").write_text(self.source)
            return [*files, f"{self.module}.sv", "top.sv"]
        return [*files, "top.sv"]


@dataclass(frozen=True)
class CompiledBench:
    """Test bench on disk.

    Attributes:
        work: its folder.
        files: source files of the design.
    """

    work: Path
    files: Sequence[Path | str]

    def complaints(self) -> str:
        """Returns the messages of Verilator, Yosys and slang; empty if there are none."""
        paths = [self.work / file for file in self.files]
        return "".join(text for _, text in tools.source_messages(paths, "top", self.work))

    def run(self, profiles: Collection[str] = PROFILES) -> dict[str, BenchRun]:
        """Compiles and simulates the bench under each stall profile."""
        self.compile()
        return {profile: run_testbench(self.work, "bench.vvp", profile) for profile in profiles}

    def run_with_resets(self, resets: Iterable[tuple[int, int]], profile: str) -> None:
        """Compiles the bench and simulates it once for each reset.

        Args:
            resets: cycles until the reset, and its length in cycles.
            profile: stall profile.
        Raises:
            AssertionError: if a beat after a reset differs.
        """
        self.compile()
        for at, length in resets:
            plusargs = (f"+reset_at={at}", f"+reset_for={length}")
            run = run_testbench(self.work, "bench.vvp", profile, plusargs=plusargs)
            assert run.passed, f"after a reset in cycle {at}, {length} long:\n{run.log}"

    def compile(self) -> None:
        """Compiles the bench for Icarus."""
        ends = sources((self.work / "testbench.sv").read_text()).values()
        files = [*dict.fromkeys([*self.files, *ends]), "testbench.sv"]
        compile_testbench(self.work, files, "bench.vvp")


def check_module(
    module: str,
    parameters: Mapping[str, int | str],
    sent: Mapping[Port, Tensor],
    memories: Mapping[str, Memory] = MappingProxyType({}),
    profiles: Collection[str] = PROFILES,
    folder: Path = RTL,
    tied: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, BenchRun]:
    """Checks that a component turns input beats into the expected output beats.

    Args:
        module: name of the module.
        parameters: parameters of the module by name.
        sent: int64 (samples * beats, lanes) for each port.
        memories: memory contents by file.
        profiles: stall profiles.
        folder: source folder.
        tied: expressions of further inputs of the module.
    Returns: simulation runs by profile.
    Raises:
        AssertionError: if a beat differs, or a tool complains about the source.
    """
    with Bench(module, parameters, sent, memories, folder, tied=tied).compiled() as bench:
        complaints = bench.complaints()
        assert not complaints, complaints
        runs = bench.run(profiles)
    check_passed(runs)
    return runs


def check_passed(runs: Mapping[str, BenchRun]) -> None:
    """Raises AssertionError with the log of the first run that failed."""
    for profile, run in runs.items():
        assert run.passed, f"under the stalls '{profile}':\n{run.log}"


def _head(ports: Collection[Port]) -> str:
    declared = [line for port in ports for line in port.declaration()]
    joined = ",\n  ".join(["input logic clk_i", "input logic rst_ni", *declared])
    return f"module top (\n  {joined}\n);\n"


def _early_input(port: Port, beats: int) -> tuple[str, dict[str, str]]:
    """Returns code that sends the first beats, and the connections of the instance."""
    (data, valid, ready), name = port.signals, port.name
    text = (
        f"  logic [{port.bits - 1}:0] {name}_early [0:{beats - 1}];\n"
        f'  initial $readmemh("{VECTORS}/{name}.hex", {name}_early);\n'
        f"  int {name}_count = 0;\n  wire {name}_taken;\n"
        f"  assign {ready} = is_live && {name}_taken;\n"
        f"  always @(posedge clk_i) if (rst_ni && is_early && {name}_taken)\n"
        f"    {name}_count <= ({name}_count + 1) % {beats};\n"
    )
    return text, {
        data: f"is_live ? {data} : {name}_early[{name}_count]",
        valid: f"is_live ? {valid} : 1'b1",
        ready: f"{name}_taken",
    }


def _early_output(port: Port) -> tuple[str, dict[str, str]]:
    """Returns code that accepts the first beats, half of them stalled, and the connections."""
    (data, valid, ready), name = port.signals, port.name
    text = f"  wire {name}_offered;\n  assign {valid} = is_live && {name}_offered;\n"
    return text, {
        data: data,
        valid: f"{name}_offered",
        ready: f"is_live ? {ready} : is_early && count_q[1]",
    }
