"""FIFO shrinking: depths from the fill levels of a simulation without stalls, then verified.

Planned depths (`chop.hardware.folds.fifo_depths`) cover the worst case. Full throughput needs only
the fill level that occurs if samples arrive evenly at the design's interval and nothing stalls.
Beyond that level, FIFOs fill up to any depth under back-pressure, from a stalling output or an
input that runs ahead. A FIFO with one more word than its fill level is never full at that pace, so
its `ready` equals that of a deeper one, and beats that arrive earlier delay none. Below
`LARGE_FIFO` a FIFO's beats leave one cycle earlier. Component timing, and therefore the fill level,
does not depend on codes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chop.errors import ConfigError, VerificationError
from chop.hardware.check.emitted import run_checks, verify
from chop.hardware.check.profiles import EVEN_INPUT
from chop.hardware.check.project import Project, describe_project, write_design
from chop.hardware.check.verify import Check, Codes, Verification
from chop.hardware.costs.logic_parts import LARGE_FIFO
from chop.hardware.design.design import Design, top_path, with_fifo_depths

MARGIN = 2
"""Beats above the highest fill level: the register behind the memory, which may be empty while the
memory is full, and a free word.
"""
NO_ROOM = "no FIFO has room to spare"
LEAST_SAMPLES = 2
"""Minimum samples to measure an interval and to see whether fill levels grow."""


@dataclass(frozen=True)
class _FifoDepth:
    """Depth of a FIFO in a design.

    Attributes:
        name: instance name, without `u_`.
        bits: bits of a beat.
        planned: planned depth in beats.
        used: highest fill level in beats with evenly arriving samples and planned depths.
        kept: depth in beats in the verified design.
        is_growing: the fill level was higher in all samples than in the first half of them.
    """

    name: str
    bits: int
    planned: int
    used: int
    kept: int
    is_growing: bool

    @property
    def saved_bits(self) -> int:
        """Bits saved relative to the planned depth."""
        return (self.planned - self.kept) * self.bits


@dataclass(frozen=True, eq=False)
class Verified:
    """A design that passed verification.

    Attributes:
        design: the circuit.
        verification: its simulations.
        fifos: depths of its FIFOs, if shrinking was requested.
        reason: reason why all FIFOs have their planned depth; otherwise empty.
    """

    design: Design
    verification: Sequence[Verification]
    fifos: Sequence[_FifoDepth] = ()
    reason: str = ""


def check_samples(samples: int) -> None:
    """Raises ConfigError if there are too few samples to measure FIFO fill levels."""
    if samples < LEAST_SAMPLES:
        raise ConfigError(
            f"shrink_fifos: {samples} sample is too few to measure FIFO fill levels; simulate "
            f"{LEAST_SAMPLES} or more."
        )


def verify_shrunk(folder: Path, design: Design, codes: Codes, planned: Sequence[Check]) -> Verified:
    """Verifies a design with shrunk FIFOs, or with planned depths if that fails.

    Args:
        folder: project folder with the design; afterwards it contains the verified one.
        design: design with planned depths.
        codes: codes of its ports.
        planned: simulations to pass, the one without stalls in Verilator first.
    Raises:
        VerificationError: if the design fails with planned depths.
    """
    project = describe_project(design)
    if not design.fifos:
        return Verified(design, verify(folder, project, codes, planned), reason=NO_ROOM)
    # The planned depths run first: their interval is the pace at which fill levels are measured.
    (before,) = run_checks(folder, project, codes, planned[:1])
    fifos = _needed(folder, design, codes, planned[0], before)
    depths = {fifo.name: fifo.kept for fifo in fifos}
    if all(fifo.kept == fifo.planned for fifo in fifos):
        reason = NO_ROOM
        if any(fifo.is_growing for fifo in fifos):
            reason = f"{planned[0].samples} samples are too few to measure their fill levels"
    else:
        smaller = with_fifo_depths(design, depths)
        result = _verified(folder, smaller, codes, planned, before)
        if not isinstance(result, str):
            return Verified(smaller, result, fifos)
        reason = result
        # The folder still has the design that failed.
        _write_top(design, folder)
    again = verify(folder, project, codes, planned)
    return Verified(design, again, [replace(fifo, kept=fifo.planned) for fifo in fifos], reason)


def _needed(
    folder: Path, design: Design, codes: Codes, full: Check, before: Verification
) -> list[_FifoDepth]:
    """Returns the required FIFO depths if samples arrive evenly at the interval.

    Args:
        folder: project folder.
        design: design with planned depths.
        codes: codes of its ports.
        full: its simulation without stalls.
        before: result of that simulation.
    """
    project = describe_project(design)
    paced = replace(project, interval=math.ceil(before.interval or project.interval))
    all_of_them = replace(full, profile=EVEN_INPUT)
    half = replace(all_of_them, samples=full.samples // 2)
    used, half_used = (ran.fills for ran in run_checks(folder, paced, codes, [all_of_them, half]))
    depths = shrunk_depths(project, used, half_used)
    return [
        _FifoDepth(
            fifo.name,
            fifo.bits,
            fifo.parameters["DEPTH"],
            used[fifo.name],
            depths[fifo.name],
            half_used[fifo.name] < used[fifo.name],
        )
        for fifo in design.fifos
    ]


def _verified(
    folder: Path, smaller: Design, codes: Codes, planned: Sequence[Check], before: Verification
) -> Sequence[Verification] | str:
    """Returns the simulations of a design with smaller FIFOs, or the reason why it fails."""
    _write_top(smaller, folder)
    try:
        simulations = verify(folder, describe_project(smaller), codes, planned)
    except VerificationError as error:
        return f"smaller ones fail: {error}"
    after, known = simulations[0].interval or 0, before.interval or 0
    if round(after) > round(known):
        return f"with smaller ones a sample takes {after:,.1f} cycles, not {known:,.1f}"
    return simulations


def _write_top(design: Design, folder: Path) -> None:
    write_design(design, folder, [top_path(design.top)])


def shrunk_depths(
    project: Project, used: Mapping[str, int], half_used: Mapping[str, int]
) -> dict[str, int]:
    """Returns FIFO depths by name from fill levels; none exceeds the project's depth.

    Args:
        project: project with planned depths.
        used: highest fill level of each FIFO, in beats.
        half_used: highest fill level within the first half of the samples. A FIFO that fills
            further in the second half keeps its depth, since more samples may fill it more.
    """
    return {
        fifo.name: needed_depth(used[fifo.name], fifo.depth)
        if half_used[fifo.name] == used[fifo.name]
        else fifo.depth
        for fifo in project.fifos
    }


def needed_depth(used: int, planned: int) -> int:
    """Returns the depth with which a FIFO of fill level `used` is never full, at most `planned`.

    >>> [needed_depth(used, 100) for used in (1, 40, 47, 48, 60, 98, 100)]
    [3, 42, 49, 51, 63, 100, 100]
    """
    depth = used + MARGIN
    # A large one has a second register behind its memory.
    return min(depth + (depth >= LARGE_FIFO), planned)
