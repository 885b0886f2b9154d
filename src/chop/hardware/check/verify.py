"""Verification of a project: lint, and simulations whose every output has to be as expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from chop.hardware.tools import elaborate, lint, version

Codes = Mapping[str, Tensor]
"""int64 (samples, *shape), by the name of the port."""
PROGRAMS: Mapping[Simulator, str] = {"verilator": "verilator", "icarus": "iverilog"}
"""The tools behind the simulators."""


@dataclass(frozen=True)
class Check:
    """A simulation to run.

    Attributes:
        simulator: which.
        profile: of stalls.
        samples: how many, from the first.
        seed: of stalls.
    """

    simulator: Simulator
    profile: Profile
    samples: int
    seed: int

    @property
    def title(self) -> str:
        """For people who wait."""
        stalls = self.profile.name.replace("_", " ")
        return f"{self.samples} samples in {self.simulator}, stalls: {stalls}"


@dataclass(frozen=True)
class Verification:
    """A simulation that passed.

    Attributes:
        simulator: which ran.
        version: of it.
        profile: of stalls.
        seed: of stalls.
        samples: how many.
        equal: codes that left and were as expected: all of them.
        cycles: until the last one left.
        latency: cycles until the last code of the first sample left.
        interval: cycles between two samples; None for a single one.
        planned: the same by the model of the components, without stalls.
        fills: FIFO -> the most beats that it held; of Verilator alone.
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
    """All simulations of a design.

    Verilator runs all samples under each profile of stalls; Icarus the first ones without stalls
    and under the uniform ones.
    """
    found = [Check("verilator", profile, samples, seed) for profile in PROFILES]
    count = min(icarus_samples, samples)
    return found + [Check("icarus", profile, count, seed) for profile in PROFILES[:2] if count]


def run_check(folder: Path, project: Project, codes: Codes, check: Check) -> Verification:
    """Simulates, and compares every output.

    Raises:
        VerificationError: an output is not as expected, or a rule of the streams was broken.
    """
    given = {name: samples[: check.samples] for name, samples in codes.items()}
    inputs = {port.name: given[port.name] for port in project.ports if port.is_input}
    expected = {port.name: given[port.name] for port in project.ports if not port.is_input}
    found = simulate(folder, project, inputs, expected, check.profile, check.simulator, check.seed)
    if not found.passed:
        raise VerificationError(f"{check.title}: {_reason(found)}")
    assert found.cycles is not None and found.latency is not None
    return Verification(
        found.simulator,
        version(PROGRAMS[found.simulator]),
        found.profile,
        found.seed,
        found.samples,
        found.codes,
        found.cycles,
        found.latency,
        found.interval,
        project.interval,
        found.fills,
    )


def simulate_project(project_dir: Path, simulator: Simulator) -> list[dict[str, Any]]:
    """Simulates all vectors of a project by one simulator.

    Runs the SystemVerilog of the folder, which is code; a `ForeignCodeWarning` says so where this
    process did not write it.

    Returns: a `Verification` for each profile of stalls, as a dict.
    Raises:
        ConfigError: there is no such simulator.
        CheckpointError: the folder has no project, or a project without vectors.
        VerificationError: an output is not as expected.
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
    """Writes `wave.vcd`: all signals while the first sample travels.

    Raises:
        VerificationError: an output is not as expected.
    """
    first = {name: samples[:1] for name, samples in codes.items()}
    inputs = {port.name: first[port.name] for port in project.ports if port.is_input}
    expected = {port.name: first[port.name] for port in project.ports if not port.is_input}
    found = simulate(folder, project, inputs, expected, PROFILES[0], wave=folder / "wave.vcd")
    if not found.passed:
        raise VerificationError(f"the traced sample: {_reason(found)}")


def _reason(simulation: Simulation) -> str:
    """The first thing that is wrong."""
    reasons = [*map(str, simulation.differences), *simulation.problems]
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"{reasons[0]}{more}"


def check_sources(folder: Path, project: Project) -> None:
    """Lints a project with Verilator, all warnings on, and elaborates it with Yosys.

    Raises:
        VerificationError: one of them has something to say.
    """
    sources = [path.relative_to(folder) for path in list_sources(folder)]
    for tool, messages in _messages(folder, project, sources):
        if messages.strip():
            raise VerificationError(f"{tool}: {messages.strip().splitlines()[0]}")


def _messages(folder: Path, project: Project, sources: list[Path]) -> Iterator[tuple[str, str]]:
    yield "verilator --lint-only -Wall", lint(sources, project.top, folder=folder)
    yield "yosys", elaborate(sources, project.top, folder)
