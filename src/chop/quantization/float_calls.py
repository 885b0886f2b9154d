"""Calls that stay float because a model's code makes them without a module."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from chop.base.notices import AdjustedWarning, warn_once_about
from chop.captured.original import list_sources
from chop.errors import GraphError
from chop.formats import QuantSpec
from chop.ir.graph import MaseGraph
from chop.ir.graph.to_module import list_unconvertible_calls
from chop.nn.quantized import QuantizedOperator
from chop.quantization.operators import quantize_nodes


def leave_calls_of_forwards(mg: MaseGraph, where: str) -> tuple[str, ...]:
    """Makes quantized calls float that `MaseGraph.to_module` could not restore, in place.

    An example is the router of a mixture of experts, whose forward calls `F.linear`. If nothing
    else is quantized, or nothing of the graph can be restored, calls stay quantized. Warns
    (`AdjustedWarning`) once per model.

    Returns: the names of the nodes.
    """
    try:
        calls = list_unconvertible_calls(mg.model, mg.provenance)
    except GraphError:
        return ()
    quantized = [
        node
        for node in mg.nodes
        if isinstance(x := mg.get_module(node), QuantizedOperator) and not x.spec.is_float
    ]
    if not calls or calls.keys() >= set(quantized):
        return ()
    quantize_nodes(mg, dict.fromkeys(calls, QuantSpec()))
    warn_once_about(list_sources(mg.model), _sentence(calls, where), AdjustedWarning, "float calls")
    return tuple(node.name for node in calls)


def _sentence(floats: Mapping[fx.Node, str], where: str) -> str:
    first, reason = next(iter(floats.items()))
    calls = "1 call stays" if len(floats) == 1 else f"{len(floats)} calls stay"
    return (
        f"{where}: {calls} float, since a module that is given back could not round there: node "
        f"'{first.name}' is a function that {reason}. Name operators to round it only in the graph "
        "and its checkpoint."
    )
