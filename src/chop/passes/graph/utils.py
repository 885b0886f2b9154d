"""What MASE's passes ask a node for."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from chop.dotted import deepgetattr, deepsetattr
from chop.errors import GraphError
from chop.ir.graph import MaseGraph, metadata_of

__all__ = [
    "deepcopy_mase_graph",
    "deepgetattr",
    "deepsetattr",
    "get_mase_op",
    "get_mase_type",
    "get_node_actual_target",
    "get_parent_name",
]


def get_mase_op(node: fx.Node) -> str:
    """The name of a node's operator, such as `linear`; needs the common metadata."""
    return metadata_of(node).common.mase_op


def get_mase_type(node: fx.Node) -> str:
    """The type of a node's operator, such as `module_related_func`; needs the common metadata."""
    return metadata_of(node).common.mase_type


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


def get_parent_name(target: str) -> tuple[str, str]:
    """The path of the parent and the last name.

    >>> get_parent_name("bert.encoder.layer.0"), get_parent_name("fc")
    (('bert.encoder.layer', '0'), ('', 'fc'))
    """
    parent, _, name = target.rpartition(".")
    return parent, name


def deepcopy_mase_graph(mg: MaseGraph) -> MaseGraph:
    """`mg.copy()` by MASE's name."""
    return mg.copy()
