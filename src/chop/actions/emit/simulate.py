"""Simulation of a project that the passes `emit_*` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from chop.config import with_checked_arguments
from chop.hardware.settings import PROJECT


@with_checked_arguments
def simulate(
    skip_build: bool = False,
    skip_test: bool = False,
    waves: bool = False,
    project_dir: str | Path = PROJECT,
    simulator: Literal["verilator", "icarus"] = "verilator",
) -> dict[str, Any]:
    """Simulates a project, and compares every output with its vectors.

    Verilator runs all vectors under four stall profiles (back-pressure), Icarus without stalls and
    under uniform ones. The cache folder keeps earlier builds. The folder's SystemVerilog is code: a
    `ForeignCodeWarning` is raised if another process wrote it.

    Args:
        skip_build: skip lint and build; simulations that were never built are still built.
        skip_test: skip the simulation.
        waves: write a trace of the first sample, `wave.vcd`.
        project_dir: folder of the project.
        simulator: "verilator" or "icarus".
    Returns: `simulations`, one row per simulation.
    Raises:
        CheckpointError: if the folder has no project, or a project without vectors.
        VerificationError: if an output differs, or lint reports a problem.
        UnavailableError: if a tool is not installed.
    """
    # The engine is large, so import it on use.
    from chop.hardware.check.project import read_project, warn_if_foreign
    from chop.hardware.check.vectors import read_vectors
    from chop.hardware.check.verify import check_sources, simulate_project, trace
    from chop.hardware.harness import verilate

    folder = Path(project_dir).expanduser()
    project = read_project(folder)
    warn_if_foreign(folder)
    if not skip_build:
        check_sources(folder, project)
        verilate(folder, project)
    simulations = [] if skip_test else simulate_project(folder, simulator)
    if waves:
        trace(folder, project, read_vectors(folder, project))
    return {"simulations": simulations}
