"""Node queries (operator, target, neighbors), and access to model members by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import fx, nn

from chop.config import with_checked_arguments
from chop.errors import GraphError, describe, did_you_mean
from chop.ir.dotted import deepgetattr
from chop.ir.metadata import node_metadata


class HasNodes(Protocol):
    """Graph: `MaseGraph` or `torch.fx.Graph`."""

    @property
    def nodes(self) -> Iterable[fx.Node]:
        """Nodes in execution order."""


def get_mase_op(node: fx.Node) -> str:
    """Returns the name of a node's operator, such as `linear`; needs the common metadata."""
    return node_metadata(node).common.mase_op


def get_mase_type(node: fx.Node) -> str:
    """Returns the type of a node's operator, such as `module_related_func`; needs the metadata."""
    return node_metadata(node).common.mase_type


def get_node_actual_target(node: fx.Node) -> Any:
    """Returns the module, function, `Tensor` method or tensor that a node calls or reads.

    For placeholders and the output, returns their name.

    Raises:
        GraphError: if the node's graph belongs to no model.
    """
    if not isinstance(node, fx.Node):
        raise GraphError(f"expected a node, got {describe(node)}; mg.node(NAME) finds it.")
    if node.op in ("placeholder", "output", "call_function"):
        return node.target
    if node.op == "call_method":
        return getattr(torch.Tensor, str(node.target))
    owner = node.graph.owning_module
    if owner is None:
        raise GraphError(
            f"node '{node.name}' belongs to a graph without a model; take it from mg.nodes."
        )
    return deepgetattr(owner, str(node.target))


def list_names(node: fx.Node) -> tuple[str, ...]:
    """Returns the names by which settings select a node: its name, and its path or method.

    Functions have no path: their text contains an address, which patterns might match by chance.

    >>> graph = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2))).graph
    >>> [list_names(node) for node in graph.nodes if node.op == "call_module"]
    [('_0', '0')]
    """
    return (node.name,) if callable(node.target) else (node.name, node.target)


@with_checked_arguments
def get_parent_name(target: str) -> tuple[str, str]:
    """Splits a path into the path of the parent and the last name.

    >>> get_parent_name("bert.encoder.layer.0"), get_parent_name("fc")
    (('bert.encoder.layer', '0'), ('', 'fc'))
    """
    parent, _, name = target.rpartition(".")
    return parent, name


def get_node_by_name(graph: HasNodes, request_name: str) -> fx.Node:
    """Returns the node with a name.

    Raises:
        GraphError: if there is none. The message suggests the nearest name.
    """
    nodes = graph.nodes
    for node in nodes:
        if node.name == request_name:
            return node
    names = [node.name for node in nodes]
    raise GraphError(f"no node '{request_name}': {did_you_mean(request_name, names)}")


def get_module_by_name(model: nn.Module, request_name: str) -> nn.Module | None:
    """Returns the module at a dotted path of a model; None if there is none."""
    return dict(model.named_modules()).get(request_name)


def get_module_by_target(model: nn.Module, target: str) -> Any:
    """Returns the module, parameter or other attribute at a dotted path of a model.

    Raises:
        GraphError: if the path does not exist. The message says where it ends.
    """
    member: Any = model
    path = target.split(".")
    for depth, name in enumerate(path):
        if not hasattr(member, name):
            raise GraphError(f"'{target}': '{'.'.join(path[:depth])}' has no '{name}'.")
        member = getattr(member, name)
    return member


def get_input_index(node: fx.Node, next_node: fx.Node) -> int | None:
    """Returns the index of the input of `next_node` that `node` provides; None if it is not one."""
    inputs = next_node.all_input_nodes
    return inputs.index(node) if node in inputs else None


def load_arg(a: Any, env: Mapping[str, Any]) -> Any:
    """Replaces nodes in the arguments of a node by their values, as interpreters do.

    Args:
        a: `node.args` or `node.kwargs`.
        env: values by node name.
    """
    return fx.node.map_arg(a, lambda node: env[node.name])
