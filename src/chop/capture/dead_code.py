"""Dead code of a fresh recording: unread nodes, no-op gradient modes and autocast regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, fx, nn

from chop.capture.module_tree import is_impure_module
from chop.capture.runtime import REGIONS, leave_autocast
from chop.capture.targets import is_impure
from chop.capture.torch_private import SET_GRAD_ENABLED


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

    _eliminate(graph, SET_GRAD_ENABLED, needs_grad)


def eliminate_autocast(graph: fx.Graph, values: Mapping[fx.Node, Any]) -> None:
    """Erases autocast regions in which no floating-point tensor is computed.

    Args:
        graph: a recording.
        values: the fake value of each node.
    """
    _eliminate(graph, leave_autocast, lambda node: _is_floating(values.get(node)))


def remove_regions(graph: fx.Graph) -> None:
    """Erases all autocast and gradient regions, for a program that runs without either."""
    for end in (SET_GRAD_ENABLED, leave_autocast):
        _eliminate(graph, end, lambda node: False, modules=False)


def _eliminate(
    graph: fx.Graph, end: Any, matters: Callable[[fx.Node], bool], modules: bool = True
) -> None:
    """Erases regions that end with `end(what their beginning returned)` and hold nothing.

    Args:
        graph: the graph.
        end: the function at the end of a region.
        matters: whether a region has to stay around a node.
        modules: whether it has to stay around the call of a module.
    """
    begun: set[fx.Node] = set()
    busy: set[fx.Node] = set()
    for node in list(graph.nodes):
        if node.target in REGIONS and node.target is not end:
            begun.add(node)
        elif node.target is end:
            begin = node.args[0]
            if begin in begun and begin not in busy and len(begin.users) == 1:
                graph.erase_node(node)
                graph.erase_node(begin)
            begun.discard(begin)
        elif (modules and node.op == "call_module") or matters(node):
            busy.update(begun)


def _is_floating(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_is_floating, value))
    return isinstance(value, Tensor) and value.is_floating_point()
