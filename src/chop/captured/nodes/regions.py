"""Regions of a graph: gradient modes and autocast, each with a node at its begin and its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from chop.captured.runtime import REGIONS, leave_autocast
from chop.private.torch_api import SET_GRAD_ENABLED


def remove_regions(graph: fx.Graph) -> None:
    """Erases all autocast and gradient regions, for a program that runs without either."""
    for end in (SET_GRAD_ENABLED, leave_autocast):
        eliminate_regions(graph, end, lambda node: False, modules=False)


def eliminate_regions(
    graph: fx.Graph, end: Any, matters: Callable[[fx.Node], bool], modules: bool = True
) -> None:
    """Erases empty regions, which end with `end(result of their first node)`.

    Args:
        graph: the graph.
        end: function at the end of a region.
        matters: returns whether a node requires its region.
        modules: whether module calls require their region.
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
