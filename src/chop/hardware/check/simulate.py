"""Simulation of a project: every code that leaves is compared with the expected one."""

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
    """Sends samples through a project and compares all that leaves.

    Args:
        folder: of the project.
        project: what is in it.
        inputs: int64 (samples, *shape) for each input port.
        expected: int64 (samples, *shape) for each output port.
        profile: of stalls.
        simulator: "verilator", or "icarus", which is some hundred times slower.
        seed: of stalls.
        wave: file of waveforms (VCD) to write; of Verilator alone.
    Raises:
        ConfigError: codes are missing, of the wrong shape or wider than their port; or Verilator
            does not accept the design.
        UnavailableError: a tool is not installed.
        ChopError: the simulation stops by itself.
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
    problems += [f"inner stream '{name}' withdrew or changed a beat" for name in outcome.violated]
    if outcome.timeout is not None:
        problems.insert(0, f"timeout in cycle {outcome.timeout}: no beat has moved for long")
    if outcome.overdue is not None:
        slow = f"samples take more than {SLOWEST} intervals of {given.project.interval} cycles"
        problems.insert(0, f"given up in cycle {outcome.overdue}: {slow}")
    return given.result("verilator", ends, codes, differences, problems, outcome.fills)


def _broken(port: Port, packed: Mapping[str, bytes], outcome: Outcome) -> list[str]:
    """Sentences on the rules that a port broke."""
    count = len(packed[port.name]) // beat_bytes(port)
    if port.is_input:
        missing = count - outcome.sent[port.name]
        return [f"input '{port.name}' did not take {missing} of {count} beats"] * bool(missing)
    received = outcome.received[port.name]
    missing = count - len(received.cycles)
    found = [f"output '{port.name}' lacks {missing} of {count} beats"] * bool(missing)
    found += [f"output '{port.name}' sent beats after the last"] * bool(received.surplus)
    if received.withdrawn is not None:
        where = f"in cycle {received.withdrawn}"
        found.append(f"output '{port.name}' withdrew or changed a beat {where}")
    return found


def _first_difference(given: Stimulus, port: Port, expected: bytes, got: bytes) -> list[Difference]:
    if expected[: len(got)] == got:
        return []
    wanted, found = (unpack(beats, port).reshape(-1) for beats in (expected[: len(got)], got))
    place = int(np.flatnonzero(wanted != found)[0])
    sample, inside = divmod(place, port.beats * port.lanes)
    return [given.difference(port, sample, inside, int(wanted[place]), int(found[place]))]
