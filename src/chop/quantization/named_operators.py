"""Operators by name, as settings list them: which there are, and which of them a graph has."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from chop.captured.layers.expert_linear import ExpertLinear
from chop.captured.layers.experts import matrices_by_parameter
from chop.errors import ConfigError, check_known
from chop.ir.graph import MaseGraph
from chop.ir.ops import OPS, quantizable_operators


def weighted_operators() -> tuple[str, ...]:
    """The names of quantizable operators with a matrix of weights."""
    return tuple(row.name for row in OPS.values() if row.weight and row.quantized)


def relevant_operators(model: nn.Module, names: Sequence[str]) -> tuple[str, ...]:
    """Those of `names` that results can depend on: those of experts where a model has experts.

    Journals of models without experts then hold whether or not these operators are named.
    """
    has_experts = any(
        isinstance(x, ExpertLinear) or matrices_by_parameter(x) for x in model.modules()
    )
    return tuple(x for x in names if has_experts or not (w := OPS[x].weight) or not w.has_experts)


def check_operators(names: Sequence[str], choices: Sequence[str] = ()) -> None:
    """Raises ConfigError where there is no name, or one is not among the choices.

    Args:
        names: they.
        choices: default, all operators that can be quantized.
    """
    choices = choices or quantizable_operators(opt_in=True)
    for name in names:
        check_known(name, choices, "operators: unknown")
    if not names:
        raise ConfigError("operators: expected at least one.")


def present_operators(mg: MaseGraph, names: Sequence[str]) -> list[str]:
    """Those of `names` that the graph has.

    Raises:
        ConfigError: it has none of them.
    """
    present = {mg.operator(node).name for node in mg.nodes}
    found = [name for name in names if name in present]
    if not found:
        raise ConfigError(
            f"the model has none of the operators {', '.join(names)}; "
            f"it has: {', '.join(sorted(name for name in present if name in OPS))}."
        )
    return found
