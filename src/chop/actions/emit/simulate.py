"""Simulation of a project that the passes `emit_*` wrote."""

from __future__ import annotations

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
    uniform ones. What was built before is found in the cache folder. The folder's SystemVerilog is
    code: a `ForeignCodeWarning` says that it is run where this process did not write it.

    Args:
        skip_build: neither lints nor builds; what is simulated is built where it never was.
        skip_test: simulates nothing.
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
