"""Stimuli and results of a simulation, shared by both simulators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chop.errors import ConfigError
from chop.hardware.check.profiles import Profile
from chop.hardware.check.project import Project
from chop.hardware.design.port import Port

Simulator = Literal["verilator", "icarus"]


@dataclass(frozen=True)
class Difference:
    """First output code that differs from the expected one.

    Attributes:
        output: port name.
        sample: index in the batch.
        index: index of the element in the sample.
        expected: expected code.
        got: simulated code.
    """

    output: str
    sample: int
    index: tuple[int, ...]
    expected: int
    got: int

    def __str__(self) -> str:
        place = f"sample {self.sample} of '{self.output}' at {list(self.index)}"
        return f"{place}: expected {self.expected}, got {self.got}"


@dataclass(frozen=True)
class Simulation:
    """Result of a simulation.

    Attributes:
        simulator: simulator name.
        profile: name of the stall profile.
        seed: seed of the stalls.
        samples: number of samples.
        codes: number of output codes that were compared.
        cycles: cycles until the last output code; None if the run was aborted.
        latency: cycles until the last output code of the first sample, which enters an empty
            circuit; None if the run was aborted.
        interval: mean cycles between two samples in the second half of the run; None with fewer
            than two samples or an aborted run.
        differences: first difference of each output that has one.
        problems: descriptions of protocol violations and of missing or surplus beats.
        fills: highest fill level of each FIFO in beats; Verilator only.
    """

    simulator: Simulator
    profile: str
    seed: int
    samples: int
    codes: int
    cycles: int | None
    latency: int | None
    interval: float | None
    differences: tuple[Difference, ...]
    problems: tuple[str, ...]
    fills: Mapping[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True if all output codes are as expected and no protocol rule was broken."""
        return not self.differences and not self.problems


@dataclass(frozen=True, eq=False)
class Stimulus:
    """Samples to send through a project, and their expected outputs.

    Attributes:
        folder: project folder.
        project: its content.
        beats: int64 (samples * beats, lanes), sent or expected, for each port.
        samples: number of samples.
        profile: stall profile.
        seed: seed of the stalls.
    """

    folder: Path
    project: Project
    beats: Mapping[str, NDArray[np.int64]]
    samples: int
    profile: Profile
    seed: int

    @property
    def outputs(self) -> list[Port]:
        """Output ports."""
        return [port for port in self.project.ports if not port.is_input]

    def difference(
        self, port: Port, sample: int, place: int, expected: int, got: int
    ) -> Difference:
        """Returns the difference at a stream position of a sample."""
        described = self.project.codes.get(port.name)
        shape = described.shape if described else (port.beats * port.lanes,)
        element = _elements(self.project, port)[place]
        index = tuple(map(int, np.unravel_index(element, shape)))
        return Difference(port.name, sample, index, expected, got)

    def result(
        self,
        simulator: Simulator,
        ends: Mapping[str, Sequence[int]],
        codes: int,
        differences: Sequence[Difference],
        problems: Sequence[str],
        fills: Mapping[str, int] | None = None,
    ) -> Simulation:
        """Builds the result of a simulation.

        Args:
            simulator: simulator name.
            ends: for each output, the cycle of the last beat of each sample.
            codes: number of output codes that were compared.
            differences: differences from the expected codes.
            problems: descriptions of violations.
            fills: highest fill level of each FIFO in beats.
        """
        complete = all(len(ends.get(port.name, ())) == self.samples for port in self.outputs)
        last = np.stack(list(ends.values())).max(axis=0) if complete else None
        return Simulation(
            simulator,
            self.profile.name,
            self.seed,
            self.samples,
            codes,
            None if last is None else 1 + int(last[-1]),
            None if last is None else 1 + int(last[0]),
            None if last is None else _interval(last),
            tuple(differences),
            tuple(problems),
            dict(fills or {}),
        )


def stimulus(
    folder: Path, project: Project, codes: Mapping[str, Tensor], profile: Profile, seed: int
) -> Stimulus:
    """Arranges samples in stream order.

    Args:
        folder: project folder.
        project: its content.
        codes: int64 (samples, *shape) for each port.
        profile: stall profile.
        seed: seed of the stalls.
    Raises:
        ConfigError: if codes are missing or have the wrong shape.
    """
    sizes = {_samples(port, codes) for port in project.ports}
    if len(sizes) != 1:
        raise ConfigError(f"simulate: the ports have different numbers of samples: {sizes}")
    beats = {port.name: _sent(project, port, codes[port.name]) for port in project.ports}
    return Stimulus(folder, project, beats, sizes.pop(), profile, seed)


def _samples(port: Port, codes: Mapping[str, Tensor]) -> int:
    if port.name not in codes:
        raise ConfigError(f"simulate: there are no codes for port '{port.name}'")
    given = codes[port.name]
    size = port.beats * port.lanes
    if given.numel() != len(given) * size or not given.numel():
        raise ConfigError(
            f"simulate: port '{port.name}' takes samples of {size} codes, got a tensor of shape "
            f"{tuple(given.shape)}"
        )
    return len(given)


def _elements(project: Project, port: Port) -> NDArray[np.int64]:
    """Returns int64 (sample size,): the element at each stream position."""
    described = project.codes.get(port.name)
    size = port.beats * port.lanes
    return np.array(described.positions if described else range(size), np.int64).argsort()


def _sent(project: Project, port: Port, codes: Tensor) -> NDArray[np.int64]:
    """Returns codes (samples, *shape) as int64 (samples * beats, lanes)."""
    flat: NDArray[np.int64] = codes.reshape(len(codes), -1).to(torch.int64).cpu().numpy()
    return flat[:, _elements(project, port)].reshape(-1, port.lanes)


def _interval(last: NDArray[np.int64]) -> float | None:
    """Returns the cycles between samples, from the cycle of each sample's last beat."""
    # The first samples fill the pipeline and its FIFOs, which takes other times than the steady
    # state.
    first = (len(last) - 1) // 2
    return float(last[-1] - last[first]) / (len(last) - 1 - first) if len(last) > 1 else None
