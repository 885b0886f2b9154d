"""Shrinking of FIFOs: depths by what a simulation without stalls stored, verified again.

Planned depths (`chop.hardware.folds.fifo_depths`) are for the worst case. What a FIFO stores
where samples come evenly at the interval of the design, and nothing stalls, is all that full speed
needs: more than that is back-pressure, of an output that stalls or an input that runs ahead, which
fill any FIFO to its depth. A FIFO with one word more than it stored is not full at that pace, and
its `ready` as high as that of a deeper one; and beats that come earlier make none leave later. Only
where a FIFO falls below `LARGE_FIFO` its beats leave a cycle earlier. Times of components do not
depend on codes, so what is stored does not either.
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
"""Beats above the most that a FIFO stored: the register behind its memory, which may be empty while
the memory is full, and a free word."""
NO_ROOM = "no FIFO has room to spare"
LEAST_SAMPLES = 2
"""To know an interval, and whether FIFOs store more of the second half than of the first."""


@dataclass(frozen=True)
class _FifoDepth:
    """A FIFO of a design.

    Attributes:
        name: of the instance, without `u_`.
        bits: of a beat.
        planned: depth in beats, by the plan.
        used: the most beats that it stored where samples came evenly, with the planned depths.
        kept: depth in beats, of the design that was verified.
        is_growing: whether it stored more of all samples than of the first half of them.
    """

    name: str
    bits: int
    planned: int
    used: int
    kept: int
    is_growing: bool

    @property
    def saved_bits(self) -> int:
        """What it stores less than planned."""
        return (self.planned - self.kept) * self.bits


@dataclass(frozen=True, eq=False)
class Verified:
    """A design that passed.

    Attributes:
        design: the circuit.
        verification: its simulations.
        fifos: what became of its FIFOs, where they were to be shrunk.
        reason: why each has its planned depth; empty otherwise.
    """

    design: Design
    verification: Sequence[Verification]
    fifos: Sequence[_FifoDepth] = ()
    reason: str = ""


def check_samples(samples: int) -> None:
    """Raises ConfigError where samples are too few to show what FIFOs store."""
    if samples < LEAST_SAMPLES:
        raise ConfigError(
            f"shrink_fifos: {samples} sample does not show what FIFOs store; simulate "
            f"{LEAST_SAMPLES} or more."
        )


def verify_shrunk(folder: Path, design: Design, codes: Codes, planned: Sequence[Check]) -> Verified:
    """Verifies a design with FIFOs as deep as needed; with its own depths where that fails.

    Args:
        folder: of the project, which has the design; it has the verified one afterwards.
        design: with planned depths.
        codes: of its ports.
        planned: the simulations that it has to pass, without stalls in Verilator first.
    Raises:
        VerificationError: the design fails with planned depths.
    """
    project = describe_project(design)
    if not design.fifos:
        return Verified(design, verify(folder, project, codes, planned), reason=NO_ROOM)
    (before,) = run_checks(folder, project, codes, planned[:1])
    fifos = _needed(folder, design, codes, planned[0], before)
    depths = {fifo.name: fifo.kept for fifo in fifos}
    if all(fifo.kept == fifo.planned for fifo in fifos):
        reason = NO_ROOM
        if any(fifo.is_growing for fifo in fifos):
            reason = f"{planned[0].samples} samples are too few to show what they need"
    else:
        smaller = with_fifo_depths(design, depths)
        found = _verified(folder, smaller, codes, planned, before)
        if not isinstance(found, str):
            return Verified(smaller, found, fifos)
        reason = found
        _write_top(design, folder)
    again = verify(folder, project, codes, planned)
    return Verified(design, again, [replace(fifo, kept=fifo.planned) for fifo in fifos], reason)


def _needed(
    folder: Path, design: Design, codes: Codes, full: Check, before: Verification
) -> list[_FifoDepth]:
    """FIFOs as deep as they have to be where samples come evenly at the interval.

    Args:
        folder: of the project.
        design: with planned depths.
        codes: of its ports.
        full: its simulation without stalls.
        before: what came of it.
    """
    project = describe_project(design)
    paced = replace(project, interval=math.ceil(before.interval or project.interval))
    all_of_them = replace(full, profile=EVEN_INPUT)
    half = replace(all_of_them, samples=full.samples // 2)
    found, of_half = (ran.fills for ran in run_checks(folder, paced, codes, [all_of_them, half]))
    depths = shrunk_depths(project, found, of_half)
    return [
        _FifoDepth(
            fifo.name,
            fifo.bits,
            fifo.parameters["DEPTH"],
            found[fifo.name],
            depths[fifo.name],
            of_half[fifo.name] < found[fifo.name],
        )
        for fifo in design.fifos
    ]


def _verified(
    folder: Path, smaller: Design, codes: Codes, planned: Sequence[Check], before: Verification
) -> Sequence[Verification] | str:
    """The simulations of a design of smaller FIFOs, or a clause why they do not do."""
    _write_top(smaller, folder)
    try:
        found = verify(folder, describe_project(smaller), codes, planned)
    except VerificationError as error:
        return f"smaller ones fail: {error}"
    after, known = found[0].interval or 0, before.interval or 0
    if round(after) > round(known):
        return f"with smaller ones a sample takes {after:,.1f} cycles, not {known:,.1f}"
    return found


def _write_top(design: Design, folder: Path) -> None:
    write_design(design, folder, [top_path(design.top)])


def shrunk_depths(
    project: Project, used: Mapping[str, int], used_of_half: Mapping[str, int]
) -> dict[str, int]:
    """Depths of FIFOs by what they stored, by name; none is above that of the project.

    Args:
        project: with planned depths.
        used: the most beats that each FIFO stored.
        used_of_half: the same of the first half of the samples. One that stored more later may
            store even more of further samples: it keeps its depth.
    """
    return {
        fifo.name: needed_depth(used[fifo.name], fifo.depth)
        if used_of_half[fifo.name] == used[fifo.name]
        else fifo.depth
        for fifo in project.fifos
    }


def needed_depth(used: int, planned: int) -> int:
    """Depth of a FIFO that stored at most `used` beats and is never full: at most `planned`.

    >>> [needed_depth(used, 100) for used in (1, 40, 47, 48, 60, 98, 100)]
    [3, 42, 49, 51, 63, 100, 100]
    """
    depth = used + MARGIN
    # A large one has a second register behind its memory.
    return min(depth + (depth >= LARGE_FIFO), planned)
