"""Verification of a project: lint, and simulations that compare every output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from chop.errors import ConfigError, VerificationError, did_you_mean
from chop.hardware.check.profiles import PROFILES, Profile
from chop.hardware.check.project import Project, list_sources, read_project, warn_if_foreign
from chop.hardware.check.simulate import simulate
from chop.hardware.check.simulation import Simulation, Simulator
from chop.hardware.check.vectors import read_vectors
from chop.hardware.tools import source_messages, version

Codes = Mapping[str, Tensor]
"""int64 (samples, *shape), by port name."""
PROGRAMS: Mapping[Simulator, str] = {"verilator": "verilator", "icarus": "iverilog"}
"""Programs that each simulator needs."""


@dataclass(frozen=True)
class Check:
    """A simulation to run.

    Attributes:
        simulator: simulator name.
        profile: stall profile.
        samples: number of samples, from the first.
        seed: seed of the stalls.
    """

    simulator: Simulator
    profile: Profile
    samples: int
    seed: int

    @property
    def title(self) -> str:
        """Label for the progress display."""
        stalls = self.profile.name.replace("_", " ")
        return f"{self.samples} samples in {self.simulator}, stalls: {stalls}"


@dataclass(frozen=True)
class Verification:
    """A simulation that passed.

    Attributes:
        simulator: simulator name.
        version: simulator version.
        profile: stall profile.
        seed: seed of the stalls.
        samples: number of samples.
        equal: number of output codes, all as expected.
        cycles: cycles until the last output code.
        latency: cycles until the last output code of the first sample.
        interval: cycles between two samples; None for a single sample.
        planned: interval predicted by the component model, without stalls.
        fills: highest fill level of each FIFO in beats; Verilator only.
    """

    simulator: str
    version: str | None
    profile: str
    seed: int
    samples: int
    equal: int
    cycles: int
    latency: int
    interval: float | None
    planned: int
    fills: Mapping[str, int] = field(default_factory=dict)


def checks(samples: int, icarus_samples: int, seed: int = 1) -> list[Check]:
    """Returns all simulations of a design.

    Verilator runs all samples under each stall profile. Icarus runs the first ones without stalls
    and with uniform stalls.
    """
    runs = [Check("verilator", profile, samples, seed) for profile in PROFILES]
    count = min(icarus_samples, samples)
    return runs + [Check("icarus", profile, count, seed) for profile in PROFILES[:2] if count]


def run_check(folder: Path, project: Project, codes: Codes, check: Check) -> Verification:
    """Runs a simulation and compares every output.

    Raises:
        VerificationError: if an output differs, or a stream rule was broken.
    """
    given = {name: samples[: check.samples] for name, samples in codes.items()}
    inputs = {port.name: given[port.name] for port in project.ports if port.is_input}
    expected = {port.name: given[port.name] for port in project.ports if not port.is_input}
    result = simulate(folder, project, inputs, expected, check.profile, check.simulator, check.seed)
    if not result.passed:
        raise VerificationError(f"{check.title}: {_reason(result)}")
    assert result.cycles is not None and result.latency is not None
    return Verification(
        result.simulator,
        version(PROGRAMS[result.simulator]),
        result.profile,
        result.seed,
        result.samples,
        result.codes,
        result.cycles,
        result.latency,
        result.interval,
        project.interval,
        result.fills,
    )


def simulate_project(project_dir: Path, simulator: Simulator) -> list[dict[str, Any]]:
    """Simulates all vectors of a project in one simulator.

    This runs the SystemVerilog in the folder, which is code. A `ForeignCodeWarning` is issued if
    this process did not write it.

    Returns: a `Verification`, as a dict, for each stall profile.
    Raises:
        ConfigError: if the simulator is unknown.
        CheckpointError: if the folder has no project, or a project without vectors.
        VerificationError: if an output differs.
    """
    if simulator not in PROGRAMS:
        raise ConfigError(f"simulator: got '{simulator}': {did_you_mean(simulator, PROGRAMS)}")
    folder = project_dir.expanduser()
    project = read_project(folder)
    codes = read_vectors(folder, project)
    warn_if_foreign(folder)
    samples = len(codes[project.ports[0].name])
    planned = [check for check in checks(samples, samples) if check.simulator == simulator]
    return [asdict(run_check(folder, project, codes, check)) for check in planned]


def trace(folder: Path, project: Project, codes: Codes) -> None:
    """Writes `wave.vcd` with all signals during the first sample.

    Raises:
        VerificationError: if an output differs.
    """
    first = {name: samples[:1] for name, samples in codes.items()}
    inputs = {port.name: first[port.name] for port in project.ports if port.is_input}
    expected = {port.name: first[port.name] for port in project.ports if not port.is_input}
    result = simulate(folder, project, inputs, expected, PROFILES[0], wave=folder / "wave.vcd")
    if not result.passed:
        raise VerificationError(f"the traced sample: {_reason(result)}")


def _reason(simulation: Simulation) -> str:
    """Returns the first fault."""
    reasons = [*map(str, simulation.differences), *simulation.problems]
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"{reasons[0]}{more}"


def check_sources(folder: Path, project: Project) -> None:
    """Lints a project in Verilator with all warnings, and elaborates it in Yosys and slang.

    Raises:
        VerificationError: if one of them reports a message.
    """
    sources = [path.relative_to(folder) for path in list_sources(folder)]
    for tool, messages in source_messages(sources, project.outermost, folder):
        if messages.strip():
            lacks = "file containing module" in messages
            advice = "; emit_internal_rtl_transform_pass writes the modules below the top" * lacks
            raise VerificationError(f"{tool}: {messages.strip().splitlines()[0]}{advice}")
