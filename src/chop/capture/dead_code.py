"""Dead code of a fresh recording: unread nodes, no-op gradient modes and autocast regions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn

from chop.captured.module_tree import is_impure_module
from chop.captured.regions import eliminate_regions
from chop.captured.runtime import leave_autocast
from chop.captured.targets import is_impure
from chop.private.torch_api import SET_GRAD_ENABLED


def eliminate_dead_code(graph: fx.Graph, model: nn.Module, extras: Mapping[str, nn.Module]) -> None:
    """Erases nodes that nobody reads, unless they draw random numbers or change state."""

    def matters(node: fx.Node) -> bool:
        if node.op != "call_module":
            return is_impure(node)
        path = str(node.target)
        return is_impure_module(extras[path] if path in extras else model.get_submodule(path))

    graph.eliminate_dead_code(matters)


def eliminate_grad_modes(graph: fx.Graph, values: Mapping[fx.Node, Any]) -> None:
    """Erases `torch.no_grad()` and `enable_grad()` regions in which nothing needs a gradient.

    Args:
        graph: a recording made with gradients on.
        values: the fake value of each node.
    """

    def needs_grad(node: fx.Node) -> bool:
        inputs = [values.get(source) for source in node.all_input_nodes]
        return any(isinstance(value, Tensor) and value.requires_grad for value in inputs)

    eliminate_regions(graph, SET_GRAD_ENABLED, needs_grad)


def eliminate_autocast(graph: fx.Graph, values: Mapping[fx.Node, Any]) -> None:
    """Erases autocast regions in which no floating-point tensor is computed.

    Args:
        graph: a recording.
        values: the fake value of each node.
    """
    eliminate_regions(graph, leave_autocast, lambda node: _is_floating(values.get(node)))


def _is_floating(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_is_floating, value))
    return isinstance(value, Tensor) and value.is_floating_point()
