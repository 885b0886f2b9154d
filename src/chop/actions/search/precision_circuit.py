"""Circuit of a precision search's best configuration: emitted, verified and estimated again."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from rich import get_console

from chop import runs
from chop.actions.emit.job import emit
from chop.actions.emit.lower import Lowering, lower_and_compare
from chop.actions.emit.settings import EmitConfig
from chop.actions.search.precision_recipe import settings_of_workload
from chop.actions.search.settings import PrecisionConfig
from chop.errors import CheckpointError, VerificationError
from chop.hardware.costs.estimate import design_cost
from chop.hardware.costs.place import check_device
from chop.hardware.tools import VERSIONS, tool_path
from chop.ir.graph import MaseGraph
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.search import TrialRecord
from chop.workloads.settings import WorkloadConfig
from chop.workloads.workload import Workload

CIRCUIT = "circuit"
"""Folder of the circuit in the folder of the study."""


def check_can_emit(config: PrecisionConfig) -> None:
    """Checks before the search that all tools of `emit_best` are installed.

    Raises:
        UnavailableError: if a tool is not installed; the message says how to install it.
    """
    for tool in VERSIONS:
        tool_path(tool)
    if config.place:
        check_device(str(config.device))


def _label(best: TrialRecord) -> str:
    return f"mixed precision, trial {best.number}"


def is_emitted(config: PrecisionConfig, best: TrialRecord) -> bool:
    """Returns True if the circuit of that trial was emitted completely."""
    with suppress(CheckpointError):
        manifest = runs.read_manifest(config.folder / CIRCUIT)
        return manifest.state == "finished" and manifest.settings.get("formats") == _label(best)
    return False


def emit_best(
    config: PrecisionConfig, problem: PrecisionProblem, best: TrialRecord, workload: Workload
) -> dict[str, Any]:
    """Emits the circuit of a trial, and verifies it as `chop emit` does.

    Returns: see `chop.actions.emit.job.emit`.
    Raises:
        VerificationError: if the circuit differs from the graph, or its resources from the
            search's estimates.
        UnavailableError: if a tool is missing.
    """
    assert problem.circuit is not None
    expected = problem.circuit.design(problem.formats(best.config), problem.max_fold(best.config))
    fold, label = problem.max_fold(best.config), _label(best)
    out = config.folder / CIRCUIT
    settings = EmitConfig(
        **settings_of_workload(config, (WorkloadConfig,)),
        out=out,
        formats=label,
        fold=fold,
        calibration_rows=config.calibration_rows,
        clock_mhz=config.clock_mhz,
        place=config.place,
        place_on=config.device if config.place else None,
    )

    def lower(workload: Workload, _: EmitConfig, rows: int) -> Lowering:
        assert problem.circuit is not None
        observed = {"observed": problem.circuit.batches}
        return lower_and_compare(problem.graph(best.config), label, workload, rows, observed)

    family = problem.circuit.settings.family
    result = emit(settings, workload, lower, family.has_multipliers)
    written = MaseGraph.from_checkpoint(out / "model")
    measured = design_cost(written, fold, family)
    numbers = {**measured.usage._asdict(), "interval": measured.interval}
    if measured != expected or any(best.values[name] != number for name, number in numbers.items()):
        raise VerificationError(
            f"'{out}': the circuit takes {measured}, but the search estimated {expected} and "
            f"recorded {dict(best.values)}."
        )
    taken = ", ".join(f"{name} {number:,.0f}" for name, number in measured.usage._asdict().items())
    get_console().print(
        f"circuit of trial {best.number}: resources as estimated in the search ({taken}, interval "
        f"{measured.interval:,}); {out}",
        highlight=False,
        markup=False,
    )
    return result
