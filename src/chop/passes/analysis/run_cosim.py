"""Simulates the circuit of a graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chop.hardware.settings import PROJECT
from chop.ir.graph import MaseGraph
from chop.passes.base import MASE_KEYS, graph_pass


@dataclass(frozen=True)
class RunCosimConfig:
    """Settings of `run_cosim_analysis_pass`.

    Attributes:
        project_dir: folder of the project, which `emit_cocotb_transform_pass` completed.
        simulator: "verilator" or "icarus".
    """

    project_dir: Path = PROJECT
    simulator: Literal["verilator", "icarus"] = "verilator"


@graph_pass(config=RunCosimConfig, ignores=MASE_KEYS)
def run_cosim_analysis_pass(mg: MaseGraph, config: RunCosimConfig) -> dict[str, Any]:
    """Simulates a project of the passes `emit_*`, and compares every output with its vectors.

    Runs the SystemVerilog of the folder, which is code; a `ForeignCodeWarning` says so where this
    process did not write it.

    Returns:
        simulations: a row for each profile of stalls: `simulator`, `version`, `profile`, `seed`,
            `samples`, how many codes were `equal`, `cycles`, the measured `interval` between two
            samples, the `planned` one, and `fills`, in Verilator the most beats of each FIFO.

    Raises:
        CheckpointError: the folder has no project, or a project without vectors.
        VerificationError: an output is not as expected.
        UnavailableError: a tool is not installed.
    """
    # The engine is imported when it is used: it is large.
    from chop.hardware.check.verify import simulate_project

    return {"simulations": simulate_project(config.project_dir, config.simulator)}
