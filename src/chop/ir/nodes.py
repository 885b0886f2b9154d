"""Queries of nodes: operator, target, neighbors; and members of models by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import fx, nn

from chop.errors import GraphError, did_you_mean
from chop.ir.dotted import deepgetattr
from chop.ir.metadata import node_metadata


class HasNodes(Protocol):
    """A graph: `MaseGraph` or `torch.fx.Graph`."""

    @property
    def nodes(self) -> Iterable[fx.Node]:
        """Nodes in the order in which they run."""


def get_mase_op(node: fx.Node) -> str:
    """The name of a node's operator, such as `linear`; needs the common metadata."""
    return node_metadata(node).common.mase_op


def get_mase_type(node: fx.Node) -> str:
    """The type of a node's operator, such as `module_related_func`; needs the common metadata."""
    return node_metadata(node).common.mase_type


def get_node_actual_target(node: fx.Node) -> Any:
    """What a node calls or reads: a module, a function, a method of `Tensor`, or a tensor.

    Of a placeholder and the output it is their name.

    Raises:
        GraphError: the node's graph belongs to no model.
    """
    if node.op in ("placeholder", "output", "call_function"):
        return node.target
    if node.op == "call_method":
        return getattr(torch.Tensor, str(node.target))
    owner = node.graph.owning_module
    if owner is None:
        raise GraphError(f"node '{node.name}' is of a graph without a model; take it of mg.nodes.")
    return deepgetattr(owner, str(node.target))


def list_names(node: fx.Node) -> tuple[str, ...]:
    """What a setting by name may call a node: its name, and the path or method that it calls.

    A function has no path: its text holds an address, which patterns would match by chance.

    >>> graph = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2))).graph
    >>> [list_names(node) for node in graph.nodes if node.op == "call_module"]
    [('_0', '0')]
    """
    return (node.name,) if callable(node.target) else (node.name, node.target)


def get_parent_name(target: str) -> tuple[str, str]:
    """The path of the parent and the last name.

    >>> get_parent_name("bert.encoder.layer.0"), get_parent_name("fc")
    (('bert.encoder.layer', '0'), ('', 'fc'))
    """
    parent, _, name = target.rpartition(".")
    return parent, name


def get_node_by_name(graph: HasNodes, request_name: str) -> fx.Node:
    """The node of that name.

    Raises:
        GraphError: there is none; the message names the nearest.
    """
    nodes = graph.nodes
    for node in nodes:
        if node.name == request_name:
            return node
    names = [node.name for node in nodes]
    raise GraphError(f"no node '{request_name}': {did_you_mean(request_name, names)}")


def get_module_by_name(model: nn.Module, request_name: str) -> nn.Module | None:
    """The module at that dotted path of a model; None where there is none."""
    return dict(model.named_modules()).get(request_name)


def get_module_by_target(model: nn.Module, target: str) -> Any:
    """The module, parameter or other attribute at that dotted path of a model.

    Raises:
        GraphError: the path ends early; the message says where.
    """
    found: Any = model
    path = target.split(".")
    for depth, name in enumerate(path):
        if not hasattr(found, name):
            raise GraphError(f"'{target}': '{'.'.join(path[:depth])}' has no '{name}'.")
        found = getattr(found, name)
    return found


def get_input_index(node: fx.Node, next_node: fx.Node) -> int | None:
    """Which of the inputs of `next_node`, from 0, the result of `node` is; None if it is none."""
    inputs = next_node.all_input_nodes
    return inputs.index(node) if node in inputs else None


def load_arg(a: Any, env: Mapping[str, Any]) -> Any:
    """Arguments of a node with the values of the nodes in them, by name, as interpreters hold them.

    Args:
        a: `node.args` or `node.kwargs`.
        env: values by the names of nodes.
    """
    return fx.node.map_arg(a, lambda node: env[node.name])
