"""Fusion of linear layers with the activations that follow them."""

from __future__ import annotations

from torch import fx, nn

from chop.captured.overrides import has_hooks
from chop.fusion.matching import erase_calls, operation
from chop.ir.graph import MaseGraph, node_metadata
from chop.ir.graph.rewrite import Match, NotRewritableError, rewrite
from chop.ir.ownership import Ownership
from chop.nn.fused import ACTIVATIONS, LinearActivation
from chop.nn.quantized import QuantizedOperator


def fuse_linear_activations(mg: MaseGraph) -> tuple[list[str], dict[str, str]]:
    """Replaces each linear layer and the activation that is its only reader, in place.

    Returns: the paths of fused layers, and the reasons by path for the others.
    """
    owned = Ownership(mg)

    def match(node: fx.Node) -> Match[tuple[fx.Node, fx.Node, str]] | None:
        activation = _activation(mg, node)
        linear = node.all_input_nodes[0] if activation else None
        if linear is None or mg.operator(linear).name != "linear" or linear.op != "call_module":
            return None
        name, reason = str(linear.target), _why_infeasible(mg, linear, node, owned)
        if reason is not None:
            raise NotRewritableError(reason, name)
        return Match(name, (linear, node, activation))

    return rewrite(mg, match, lambda match: _fuse(mg, *match))


def _activation(mg: MaseGraph, node: fx.Node) -> str:
    """Returns the name in `ACTIVATIONS` that a node computes, or ""."""
    name = operation(mg, node)
    if name == "gelu":
        how = getattr(mg.get_module(node), "approximate", node.kwargs.get("approximate", "none"))
        name = "gelu" if how == "none" else f"gelu_{how}"
    return name if name in ACTIVATIONS and len(node.all_input_nodes) == 1 else ""


def _why_infeasible(mg: MaseGraph, linear: fx.Node, node: fx.Node, owned: Ownership) -> str | None:
    """Returns the reason that a layer and its activation cannot be fused, or None."""
    modules = [
        module for module in (mg.get_module(linear), mg.get_module(node)) if module is not None
    ]
    if any(isinstance(module, QuantizedOperator) for module in modules):
        return "it, or its activation, is quantized or pruned"
    if type(modules[0]) is not nn.Linear:
        return f"it is a {type(modules[0]).__name__} instead of a plain nn.Linear"
    if any(has_hooks(module) for module in modules):
        return "it, or its activation, has hooks"
    if len(linear.users) > 1:
        return "its result has other readers"
    reason = owned.why_shared(linear)
    return None if reason is None else f"it {reason}"


def _fuse(mg: MaseGraph, linear: fx.Node, node: fx.Node, activation: str) -> None:
    layer = mg.get_module(linear)
    assert isinstance(layer, nn.Linear)
    mg.replace(linear, LinearActivation.from_linear(layer, activation))
    node.replace_all_uses_with(linear)
    erase_calls(mg, [node])
    common, row = node_metadata(linear).common, mg.operator(linear)
    common.mase_op, common.mase_type = row.name, row.mase_type
