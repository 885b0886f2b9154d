"""Run of a Verilated project: input beats, output beats and protocol violations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chop.base import children
from chop.base.files.temporary import scratch_folder
from chop.errors import ChopError, UnavailableError
from chop.hardware.check.profiles import Profile
from chop.hardware.check.project import Project
from chop.hardware.check.testbench import SLOWEST
from chop.hardware.design.load import WORDS_FILE
from chop.hardware.design.packing import beat_bytes
from chop.hardware.design.port import Port
from chop.hardware.harness.top import FILL_BITS, checked_names, fill_bits, violated_bits

WORKER = Path(__file__).parent / "worker.py"
RUN_SECONDS = 3600
NOT_LOADED = 3
"""Exit status of the worker if the library cannot be loaded."""
IDLE_CYCLES = 20_000
DRAIN_CYCLES = 512
NEVER = -1


class NotLoadedError(ChopError, OSError):
    """Raised if this system cannot load the library of a simulation."""


@dataclass(frozen=True, eq=False)
class Received:
    """Beats received from an output port.

    Attributes:
        beats: little-endian beats, each in whole bytes; at most as many as expected.
        cycles: int64 cycle of each beat.
        surplus: number of beats after the expected ones.
        withdrawn: first cycle in which an unaccepted beat was withdrawn or changed, or None.
    """

    beats: bytes
    cycles: NDArray[np.int64]
    surplus: int
    withdrawn: int | None


@dataclass(frozen=True, eq=False)
class Outcome:
    """Outcome of a run.

    Attributes:
        received: by output port, the received beats.
        sent: by input port, the number of accepted beats.
        cycles: cycles of the run, those that detect surplus beats included.
        timeout: cycle in which the run was aborted because no beat moved for long, or None.
        overdue: cycle in which the run was aborted because samples took far longer than the
            interval, or None.
        violated: inner streams that withdrew or changed a beat, and violated AXI4-Stream checks.
        fills: by FIFO, the highest fill level in beats.
    """

    received: Mapping[str, Received]
    sent: Mapping[str, int]
    cycles: int
    timeout: int | None
    overdue: int | None
    violated: tuple[str, ...]
    fills: Mapping[str, int]


def run_library(
    library: Path,
    folder: Path,
    project: Project,
    sent: Mapping[str, bytes],
    expected: Mapping[str, int],
    profile: Profile,
    seed: int = 1,
    idle_cycles: int = IDLE_CYCLES,
    wave: Path | None = None,
) -> Outcome:
    """Sends beats through a simulated project in a separate process.

    Args:
        library: result of `verilate`.
        folder: project folder, with its memories.
        project: its content.
        sent: beats of each input port, as `chop.hardware.design.packing.pack` writes them.
        expected: number of beats expected from each output port.
        profile: stall profile.
        seed: seed of the stalls.
        idle_cycles: the run is aborted after so many cycles, in addition to ten intervals of the
            project, without a transfer, or if samples take `SLOWEST` intervals each.
        wave: waveform file (VCD) to write; the library has to be built for it.
    Raises:
        NotLoadedError: if the library cannot be loaded; building it again may help.
        ChopError: if the simulation aborts: a memory is missing, or a `$fatal` was reached.
        UnavailableError: if it takes longer than `RUN_SECONDS`.
    """
    inputs = [port for port in project.ends if port.is_input]
    outputs = [port for port in project.ports if not port.is_input]
    sent = {**sent, **_words(folder, project)}
    has_samples = any(port.is_input for port in project.ports)
    pause = profile.pause_cycles(project.interval)
    idle = idle_cycles + 10 * (project.interval + pause)
    beats = {p.name: len(sent[p.name]) // beat_bytes(p) for p in inputs} | dict(expected)
    samples = max(-(-beats[port.name] // port.beats) for port in project.ports)
    with scratch_folder("simulation") as work:
        for port in inputs:
            (work / f"{port.name}.in").write_bytes(sent[port.name])

        def described(ports: Sequence[Port]) -> list[dict[str, Any]]:
            return [_port(work, p, beats[p.name], profile, project) for p in ports]

        job = {
            "library": str(library),
            "pauses": [profile.pause_every(project.interval), pause],
            "seed": seed,
            "idle_cycles": idle,
            "most_cycles": min(10 * idle + SLOWEST * samples * project.interval, 2**62),
            # Without inputs the samples are endless.
            "drain_cycles": DRAIN_CYCLES + project.interval if has_samples else 0,
            "wave": str(wave.absolute()) if wave else None,
            "inputs": described(inputs),
            "outputs": described(outputs),
            "violated_bytes": -(-violated_bits(project) // 8),
            "fills": fill_bits(project.fifos) // FILL_BITS,
            "result": str(work / "result.json"),
            "parent": os.getpid(),
        }
        (work / "job.json").write_text(json.dumps(job), encoding="utf-8")
        _work(work / "job.json", folder)
        result = json.loads((work / "result.json").read_text(encoding="utf-8"))
        return _outcome(work, project, result, expected)


def _words(folder: Path, project: Project) -> dict[str, bytes]:
    """Returns the words of weights in the project folder, by port."""
    if project.load is None:
        return {}
    words = (folder / WORDS_FILE).read_text(encoding="utf-8").split()
    size = beat_bytes(project.load)
    return {project.load.name: b"".join(int(w, 16).to_bytes(size, "little") for w in words)}


def _port(work: Path, port: Port, count: int, profile: Profile, project: Project) -> dict[str, Any]:
    is_load, interval = port == project.load, project.interval
    suffix = "in" if port.is_input else "out"
    return {
        "file": str(work / f"{port.name}.{suffix}"),
        "cycles_file": str(work / f"{port.name}.cycles"),
        "count": count,
        "bytes": beat_bytes(port),
        "share": profile.share(port, interval),
        # Weights are written before the cycles that a pace counts.
        "pace": (1, 0) if is_load else profile.pace(port, interval),
        "is_load": is_load,
    }


def _work(job: Path, folder: Path) -> None:
    try:
        # The worker starts in the project folder. Isolated mode imports no Python file that lies
        # there.
        command = [sys.executable, "-I", "-S", str(WORKER), str(job)]
        done = children.run(command, folder, RUN_SECONDS, supervised=False)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"the simulation takes longer than {RUN_SECONDS} seconds") from None
    lines = (done.stdout + done.stderr).splitlines()
    if done.returncode == NOT_LOADED:
        raise NotLoadedError(f"the simulation cannot be loaded: {lines[-1]}")
    # Verilator only warns of a missing memory file, and reads zeros.
    reasons = [line for line in lines if "%Error" in line or "%Warning" in line]
    if done.returncode or reasons:
        reason = [*reasons, *lines[-1:], f"status {done.returncode}"][0]
        raise ChopError(f"the simulation stopped: {reason}")


def _outcome(
    work: Path, project: Project, result: Mapping[str, Any], expected: Mapping[str, int]
) -> Outcome:
    inputs = [port for port in project.ends if port.is_input]
    outputs = [port for port in project.ports if not port.is_input]
    moved = dict(zip((p.name for p in (*inputs, *outputs)), result["moved"], strict=True))
    received = {}
    for port, withdrawn in zip(outputs, result["withdrawn"], strict=True):
        count = min(moved[port.name], expected[port.name])
        beats = (work / f"{port.name}.out").read_bytes()[: count * beat_bytes(port)]
        cycles = np.fromfile(work / f"{port.name}.cycles", np.int64)[:count]
        surplus = moved[port.name] - count
        received[port.name] = Received(
            beats, cycles, surplus, None if withdrawn == NEVER else withdrawn
        )
    if result["status"] == "finished":
        raise ChopError(f"the simulation stopped: $finish in cycle {result['cycle']}")
    return Outcome(
        received,
        {port.name: moved[port.name] for port in inputs},
        result["cycle"],
        result["cycle"] if result["status"] == "timeout" else None,
        result["cycle"] if result["status"] == "overdue" else None,
        tuple(n for k, n in enumerate(checked_names(project)) if result["violated"] >> k & 1),
        dict(zip((fifo.name for fifo in project.fifos), result["fills"], strict=False)),
    )
