"""Simulation of a project that the passes `emit_*` wrote."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from chop.hardware.settings import PROJECT


def simulate(
    skip_build: bool = False,
    skip_test: bool = False,
    waves: bool = False,
    project_dir: str | Path = PROJECT,
    simulator: Literal["verilator", "icarus"] = "verilator",
) -> dict[str, Any]:
    """Simulates a project, and compares every output with its vectors.

    Verilator runs all vectors under four profiles of stalls, Icarus without stalls and under
    uniform ones. What was built before is found in the cache folder.

    Args:
        skip_build: no lint; the simulation itself is built where it never was.
        skip_test: nothing is simulated: the project is linted and built.
        waves: writes a trace of the first sample, `wave.vcd`.
        project_dir: folder of the project.
        simulator: "verilator" or "icarus".
    Returns: `simulations`, a row for each.
    Raises:
        CheckpointError: the folder has no project, or a project without vectors.
        VerificationError: an output is not as expected, or lint has something to say.
        UnavailableError: a tool is not installed.
    """
    # The engine is imported when it is used: it is large.
    from chop.hardware.harness import verilate
    from chop.hardware.project import read_project
    from chop.hardware.vectors import read_vectors
    from chop.hardware.verify import check_sources, checks, run_check, trace

    folder = Path(project_dir).expanduser()
    project = read_project(folder)
    if not skip_build:
        check_sources(folder, project)
    if skip_test:
        verilate(folder, project)
        return {"simulations": []}
    codes = read_vectors(folder, project)
    samples = len(codes[project.ports[0].name])
    planned = [check for check in checks(samples, samples) if check.simulator == simulator]
    found = [asdict(run_check(folder, project, codes, check)) for check in planned]
    if waves:
        trace(folder, project, codes)
    return {"simulations": found}
