"""Circuit emission: from a graph to a design."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from chop.errors import ConfigError
from chop.hardware.design.design import Design, build_design
from chop.hardware.design.netlist import netlist
from chop.hardware.integer_form import integer_form
from chop.hardware.settings import TOP
from chop.ir.graph import MaseGraph

MULTIPLIERS = 256
"""Target number of multipliers if no fold is given."""
UNFOLDED = 2**62
"""Fold that every operator reaches with one lane."""


def emit(
    mg: MaseGraph,
    fold: int = 0,
    top: str = TOP,
    folds: Mapping[str, int] | None = None,
    soft: Collection[str] = (),
) -> Design:
    """Builds the circuit of a graph.

    Args:
        mg: an integer graph, or a quantized one, which is lowered.
        fold: see `chop.hardware.settings.EmitSettings`.
        top: name of the top module.
        folds: folds of single nodes by name, as `chop.hardware.folds.fold` chooses them.
        soft: names of nodes in `folds` whose products are built from lookup tables.
    Raises:
        ConfigError: if the graph has no integer form, operators have no circuit, or `fold` is
            negative.
    """
    if fold < 0:
        raise ConfigError(f"fold: expected 0 or more cycles, got {fold}.")
    integer = integer_form(mg)
    return build_design(netlist(integer, fold or default_fold(integer), folds, soft), top)


def default_fold(mg: MaseGraph, multipliers: int = MULTIPLIERS) -> int:
    """Returns the cycles per sample with which a circuit needs about `multipliers` multipliers."""
    # With one lane, a component that multiplies computes one product per cycle.
    work = sum(part.plan.cycles for part in netlist(mg, UNFOLDED).instances)
    return -(-work // multipliers)
