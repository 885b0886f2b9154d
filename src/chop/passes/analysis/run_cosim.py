"""Simulation of a graph's circuit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chop.errors import CheckpointError
from chop.hardware.settings import PROJECT
from chop.ir.graph import MaseGraph
from chop.passes.base import MASE_KEYS, graph_pass

if TYPE_CHECKING:
    from chop.hardware.check.project import Project


@dataclass(frozen=True)
class RunCosimConfig:
    """Settings of `run_cosim_analysis_pass`.

    Attributes:
        project_dir: folder of the project, completed by `emit_cocotb_transform_pass`.
        simulator: "verilator" or "icarus".
    """

    project_dir: Path = PROJECT
    simulator: Literal["verilator", "icarus"] = "verilator"


@graph_pass(config=RunCosimConfig, ignores=MASE_KEYS)
def run_cosim_analysis_pass(mg: MaseGraph, config: RunCosimConfig) -> dict[str, Any]:
    """Simulates a project of the passes `emit_*` and compares every output with its vectors.

    Runs the SystemVerilog code of the folder. Warns (`ForeignCodeWarning`) if another process wrote
    it.

    Returns:
        simulations: a row per stall profile: `simulator`, `version`, `profile`, `seed`, `samples`,
            number of `equal` codes, `cycles`, the measured `interval` between two samples, the
            `planned` one, and `fills`, in Verilator the maximum fill of each FIFO in beats.

    Raises:
        CheckpointError: if the folder has no project, one of another graph, or one without vectors.
        VerificationError: if an output differs from its vector.
        UnavailableError: if a tool is not installed.
    """
    # The engine is imported when it is used: it is large.
    from chop.hardware.check.project import describe_project, read_project
    from chop.hardware.check.verify import simulate_project
    from chop.hardware.design.emit import emit
    from chop.hardware.integer_form import integer_form

    project = read_project(config.project_dir.expanduser())
    own = describe_project(emit(integer_form(mg), 0, project.top))
    if _describe_ports(own) != _describe_ports(project):
        raise CheckpointError(
            f"'{config.project_dir}' has the circuit of another graph: run the passes "
            "emit_verilog_top, emit_internal_rtl, emit_bram and emit_cocotb on this graph first, "
            "or pass its folder as project_dir."
        )
    return {"simulations": simulate_project(config.project_dir, config.simulator)}


def _describe_ports(project: Project) -> dict[str, tuple[Any, ...]]:
    """Returns numbers that do not depend on the fold; bounds of outputs depend on the weights."""
    return {
        name: (port.node, port.shape, port.step, port.low, port.high)
        for name, port in project.codes.items()
    }
