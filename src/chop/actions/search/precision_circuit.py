"""Circuit of what a precision search found: emitted, verified, and estimated once more."""

from __future__ import annotations

from typing import Any

from rich import get_console

from chop.actions.emit import emit
from chop.actions.lower import Lowering, lowering_of
from chop.actions.settings.emit import EmitConfig
from chop.actions.settings.search import PrecisionConfig
from chop.errors import VerificationError
from chop.hardware.estimate import design_cost
from chop.ir.graph import MaseGraph
from chop.mixed_precision.problem import PrecisionProblem
from chop.search import TrialRecord
from chop.workloads.workload import Workload

CIRCUIT = "circuit"
"""Folder of the circuit, in that of the study."""


def emit_best(
    config: PrecisionConfig, found: PrecisionProblem, best: TrialRecord, workload: Workload
) -> dict[str, Any]:
    """Emits the circuit of a trial, and verifies it as `chop emit` does.

    Args:
        config: of the search.
        found: what was searched over.
        best: the trial.
        workload: of the search.
    Returns: see `chop.actions.emit.emit`.
    Raises:
        VerificationError: the circuit is not what the graph is, or takes something else than the
            search estimated.
        UnavailableError: a tool is not there.
    """
    assert found.circuit is not None
    expected = found.circuit.design(found.formats(best.config), found.fold_of(best.config))
    fold, label = found.fold_of(best.config), f"mixed precision, trial {best.number}"
    out = config.folder / CIRCUIT
    settings = EmitConfig(
        model=config.model,
        out=out,
        formats=label,
        fold=fold,
        seed=config.seed,
        place=config.place,
        place_on=config.device if config.place and config.torch_device is None else None,
    )

    def lower(workload: Workload, _: EmitConfig, rows: int) -> Lowering:
        assert found.circuit is not None
        observed = {"observed": found.circuit.batches}
        return lowering_of(found.graph(best.config), label, workload, rows, observed)

    result = emit(settings, workload, lower)
    written = MaseGraph.from_checkpoint(out / "model")
    measured = design_cost(written, fold, found.circuit.settings.family)
    if measured != expected:
        raise VerificationError(
            f"'{out}': the search estimated {expected}, and the circuit takes {measured}."
        )
    taken = ", ".join(f"{name} {number:,.0f}" for name, number in measured.usage._asdict().items())
    get_console().print(
        f"circuit of trial {best.number}: estimated as in the search ({taken}, interval "
        f"{measured.interval:,}); {out}",
        highlight=False,
        markup=False,
    )
    return result
