"""Simulation of a project and comparison of every output code with the expected one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from chop.base.native import remove_damaged
from chop.hardware.check.icarus import simulate_by_icarus
from chop.hardware.check.profiles import Profile
from chop.hardware.check.project import Project
from chop.hardware.check.simulation import Difference, Simulation, Simulator, Stimulus, stimulus
from chop.hardware.check.testbench import SLOWEST
from chop.hardware.design.packing import beat_bytes, pack, unpack
from chop.hardware.design.port import Port
from chop.hardware.harness import NotLoadedError, Outcome, run_library, verilate


def simulate(
    folder: Path,
    project: Project,
    inputs: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    profile: Profile,
    simulator: Simulator = "verilator",
    seed: int = 1,
    wave: Path | None = None,
) -> Simulation:
    """Sends samples through a project and compares all outputs.

    Args:
        folder: project folder.
        project: its content.
        inputs: int64 (samples, *shape) for each input port.
        expected: int64 (samples, *shape) for each output port.
        profile: stall profile.
        simulator: "verilator", or "icarus", which is some hundred times slower.
        seed: seed of the stalls.
        wave: waveform file (VCD) to write; Verilator only.
    Raises:
        ConfigError: if codes are missing, have the wrong shape or exceed their port's width, or if
            Verilator rejects the design.
        UnavailableError: if a tool is not installed.
        ChopError: if the simulation aborts.
    """
    given = stimulus(folder, project, {**inputs, **expected}, profile, seed)
    packed = {port.name: pack(given.beats[port.name], port) for port in project.ports}
    if simulator == "icarus":
        return simulate_by_icarus(given)
    counts = {port.name: len(given.beats[port.name]) for port in given.outputs}

    def run() -> Outcome:
        return run_library(library, folder, project, packed, counts, profile, seed, wave=wave)

    library = verilate(folder, project, wave is not None)
    try:
        outcome = run()
    except NotLoadedError as error:
        # The cache may hold a library of another system or an incomplete one; a new build replaces
        # it.
        remove_damaged(library, str(error))
        library = verilate(folder, project, wave is not None)
        outcome = run()
    return _compared(given, packed, outcome)


def _compared(given: Stimulus, packed: Mapping[str, bytes], outcome: Outcome) -> Simulation:
    differences, codes, ends = [], 0, {}
    for port in given.outputs:
        received = outcome.received[port.name]
        codes += len(received.cycles) * port.lanes
        ends[port.name] = received.cycles[port.beats - 1 :: port.beats].tolist()
        differences += _first_difference(given, port, packed[port.name], received.beats)
    problems = [
        sentence for port in given.project.ports for sentence in _broken(port, packed, outcome)
    ]
    problems += [_violation(given.project, name) for name in outcome.violated]
    if outcome.timeout is not None:
        problems.insert(
            0, f"timeout in cycle {outcome.timeout}: no beat was transferred for a long time"
        )
    if outcome.overdue is not None:
        slow = f"samples take more than {SLOWEST} intervals of {given.project.interval} cycles"
        problems.insert(0, f"given up in cycle {outcome.overdue}: {slow}")
    return given.result("verilator", ends, codes, differences, problems, outcome.fills)


def _violation(project: Project, name: str) -> str:
    if name in dict(project.streams):
        return f"inner stream '{name}' withdrew or changed a beat"
    return f"{name}: broke the rules of AXI4-Stream"


def _broken(port: Port, packed: Mapping[str, bytes], outcome: Outcome) -> list[str]:
    """Returns descriptions of the protocol violations of a port."""
    count = len(packed[port.name]) // beat_bytes(port)
    if port.is_input:
        missing = count - outcome.sent[port.name]
        return [f"input '{port.name}' did not accept {missing} of {count} beats"] * bool(missing)
    received = outcome.received[port.name]
    missing = count - len(received.cycles)
    problems = [f"output '{port.name}' lacks {missing} of {count} beats"] * bool(missing)
    problems += [f"output '{port.name}' sent beats after the last"] * bool(received.surplus)
    if received.withdrawn is not None:
        where = f"in cycle {received.withdrawn}"
        problems.append(f"output '{port.name}' withdrew or changed a beat {where}")
    return problems


def _first_difference(given: Stimulus, port: Port, expected: bytes, got: bytes) -> list[Difference]:
    # Comparing bytes avoids unpacking the codes of a run without differences.
    if expected[: len(got)] == got:
        return []
    expected_codes, actual = (
        unpack(beats, port).reshape(-1) for beats in (expected[: len(got)], got)
    )
    place = int(np.flatnonzero(expected_codes != actual)[0])
    sample, inside = divmod(place, port.beats * port.lanes)
    return [given.difference(port, sample, inside, int(expected_codes[place]), int(actual[place]))]
