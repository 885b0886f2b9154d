"""Dead code of a fresh recording: unread nodes, no-op gradient modes and autocast regions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn

from chop.capture.module_tree import is_impure_module
from chop.capture.runtime import enter_autocast, leave_autocast
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
    """Erases the ends of `torch.no_grad()` regions in which nothing needs a gradient.

    Args:
        graph: a recording made with gradients on.
        values: the fake value of each node.
    """
    if any(isinstance(node.args[0], fx.Node) for node in graph.nodes if _is_switch(node)):
        # A region that depends on the mode or on data cannot be paired with its end here.
        return
    enabled, start, needed = True, None, False
    for node in list(graph.nodes):
        if not _is_switch(node):
            needed = needed or (not enabled and _needs_grad(node, values))
            continue
        if node.args[0] is enabled:
            graph.erase_node(node)
            continue
        enabled = not enabled
        if not enabled:
            start, needed = node, False
        elif start is not None and not needed:
            graph.erase_node(start)
            graph.erase_node(node)


def _is_switch(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is SET_GRAD_ENABLED


def _needs_grad(node: fx.Node, values: Mapping[fx.Node, Any]) -> bool:
    if node.op == "call_module":
        return True
    inputs = [values.get(source) for source in node.all_input_nodes]
    return any(isinstance(value, Tensor) and value.requires_grad for value in inputs)


def eliminate_autocast(graph: fx.Graph, values: Mapping[fx.Node, Any]) -> None:
    """Erases autocast regions in which no floating-point tensor is computed.

    Args:
        graph: a recording.
        values: the fake value of each node.
    """
    open_regions: set[Any] = set()
    busy: set[Any] = set()
    for node in list(graph.nodes):
        if node.target is enter_autocast:
            open_regions.add(node)
        elif node.target is leave_autocast:
            (entered,) = node.args
            open_regions.discard(entered)
            if entered not in busy:
                _erase_region(graph, node)
        elif node.op == "call_module" or _is_floating(values.get(node)):
            busy.update(open_regions)


def remove_autocast(graph: fx.Graph) -> None:
    """Erases all autocast regions, for a program that always runs without autocast."""
    for node in list(graph.nodes):
        if node.target is leave_autocast:
            _erase_region(graph, node)


def _erase_region(graph: fx.Graph, leave: fx.Node) -> None:
    (entered,) = leave.all_input_nodes
    graph.erase_node(leave)
    graph.erase_node(entered)


def _is_floating(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_is_floating, value))
    return isinstance(value, Tensor) and value.is_floating_point()
