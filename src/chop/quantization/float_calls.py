"""Calls that stay float: those that the code of a model makes itself, and no module can hold."""

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
    """Makes quantized calls float that `MaseGraph.to_module` could not give back, in place.

    The router of a mixture of experts is one: its forward calls `F.linear` itself. Where nothing
    else is quantized, or nothing of the graph could be given back, calls stay as they are. Warns
    (`AdjustedWarning`) once for each model.

    Returns: the names of the nodes.
    """
    try:
        found = list_unconvertible_calls(mg.model, mg.provenance)
    except GraphError:
        return ()
    quantized = [
        node
        for node in mg.nodes
        if isinstance(x := mg.get_module(node), QuantizedOperator) and not x.spec.is_float
    ]
    if not found or found.keys() >= set(quantized):
        return ()
    quantize_nodes(mg, dict.fromkeys(found, QuantSpec()))
    warn_once_about(list_sources(mg.model), _sentence(found, where), AdjustedWarning, "float calls")
    return tuple(node.name for node in found)


def _sentence(found: Mapping[fx.Node, str], where: str) -> str:
    first, reason = next(iter(found.items()))
    calls = "1 call stays" if len(found) == 1 else f"{len(found)} calls stay"
    return (
        f"{where}: {calls} float, since a module that is given back could not round there: node "
        f"'{first.name}' is a function that {reason}. Name operators to round it in the graph and "
        "its checkpoint alone."
    )
