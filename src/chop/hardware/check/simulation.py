"""Simulation inputs and results, the same for both simulators."""

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
    """The first code of an output that is not the expected one.

    Attributes:
        output: name of the port.
        sample: of the batch.
        index: of the element in the sample.
        expected: code.
        got: code.
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
    """What came of simulating samples.

    Attributes:
        simulator: which ran.
        profile: name of the stalls.
        seed: of the stalls.
        samples: how many.
        codes: how many left and were compared.
        cycles: until the last code left; None where the run was given up.
        latency: cycles until the last code of the first sample left, which the circuit has to
            itself at first; None where the run was given up.
        interval: cycles between two samples, over the second half of them; None for fewer than
            two, or where the run was given up.
        differences: the first one of each output that has any.
        problems: sentences on broken rules of streams, missing and surplus beats.
        fills: FIFO -> the most beats that it held; of Verilator alone.
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
        """Whether all codes left, as expected, and no rule was broken."""
        return not self.differences and not self.problems


@dataclass(frozen=True, eq=False)
class Stimulus:
    """Samples to send through a project, and what has to leave.

    Attributes:
        folder: of the project.
        project: what is in it.
        beats: int64 (samples * beats, lanes) for each port, sent or expected.
        samples: how many.
        profile: of stalls.
        seed: of stalls.
    """

    folder: Path
    project: Project
    beats: Mapping[str, NDArray[np.int64]]
    samples: int
    profile: Profile
    seed: int

    @property
    def outputs(self) -> list[Port]:
        """Ports out."""
        return [port for port in self.project.ports if not port.is_input]

    def difference(
        self, port: Port, sample: int, place: int, expected: int, got: int
    ) -> Difference:
        """A difference at a place of a port's stream within a sample."""
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
        """What came of it.

        Args:
            simulator: which ran.
            ends: for each output the cycle in which the last beat of each sample left.
            codes: how many left and were compared.
            differences: from the expected codes.
            problems: sentences.
            fills: FIFO -> the most beats that it held.
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
    """Orders samples as they travel.

    Args:
        folder: of the project.
        project: what is in it.
        codes: int64 (samples, *shape) for each port.
        profile: of stalls.
        seed: of stalls.
    Raises:
        ConfigError: codes are missing or of the wrong shape.
    """
    sizes = {_samples(port, codes) for port in project.ports}
    if len(sizes) != 1:
        raise ConfigError(f"simulate: the ports have different numbers of samples: {sizes}")
    beats = {port.name: _sent(project, port, codes[port.name]) for port in project.ports}
    return Stimulus(folder, project, beats, sizes.pop(), profile, seed)


def _samples(port: Port, codes: Mapping[str, Tensor]) -> int:
    """How many samples a port has."""
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
    """int64 (size of a sample,): which element travels at each place of the stream."""
    described = project.codes.get(port.name)
    size = port.beats * port.lanes
    return np.array(described.positions if described else range(size), np.int64).argsort()


def _sent(project: Project, port: Port, codes: Tensor) -> NDArray[np.int64]:
    """int64 (samples * beats, lanes) of codes (samples, *shape)."""
    flat: NDArray[np.int64] = codes.reshape(len(codes), -1).to(torch.int64).cpu().numpy()
    return flat[:, _elements(project, port)].reshape(-1, port.lanes)


def _interval(last: NDArray[np.int64]) -> float | None:
    """Cycles between samples, by when each one's last beat left."""
    first = (len(last) - 1) // 2
    return float(last[-1] - last[first]) / (len(last) - 1 - first) if len(last) > 1 else None
