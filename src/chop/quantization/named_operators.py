"""Operator names in settings: the known ones, and those in a graph."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from chop.captured.layers.expert_linear import ExpertLinear
from chop.captured.layers.experts import matrices_by_parameter
from chop.errors import ConfigError, check_known
from chop.ir.graph import MaseGraph
from chop.ir.ops import OPS, quantizable_operators


def weighted_operators() -> tuple[str, ...]:
    """Returns the names of quantizable operators with weight matrices."""
    return tuple(row.name for row in OPS.values() if row.weight and row.quantized)


def relevant_operators(model: nn.Module, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names that can affect results: expert operators only if the model has experts.

    Journals of models without experts therefore do not depend on the names of expert operators.
    """
    has_experts = any(
        isinstance(x, ExpertLinear) or matrices_by_parameter(x) for x in model.modules()
    )
    return tuple(x for x in names if has_experts or not (w := OPS[x].weight) or not w.has_experts)


def check_operators(names: Sequence[str], choices: Sequence[str] = ()) -> None:
    """Checks that there is at least one name, and that all are known.

    Args:
        names: names of operators.
        choices: default, all quantizable operators.
    """
    choices = choices or quantizable_operators(opt_in=True)
    for name in names:
        check_known(name, choices, "operators: unknown")
    if not names:
        raise ConfigError("operators: expected at least one.")


def present_operators(mg: MaseGraph, names: Sequence[str]) -> list[str]:
    """Returns the names of operators that occur in the graph.

    Raises:
        ConfigError: if none occurs.
    """
    present = {mg.operator(node).name for node in mg.nodes}
    matches = [name for name in names if name in present]
    if not matches:
        own = ", ".join(sorted(name for name in present if name in OPS))
        raise ConfigError(
            f"the model has none of the operators {', '.join(names)}; it has: {own or 'none'}."
        )
    return matches
