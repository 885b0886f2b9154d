"""Edit stamps of a `torch.fx.Graph`: tells in constant time whether nodes have changed.

Fence around the methods of `torch._C._NodeBase` by which every edit of a node ends. Known for torch
2.13; `tests/private/test_graph_edits.py` fails first where torch changes them.
"""

from __future__ import annotations

import itertools
from typing import Any, cast

from torch import fx

_STAMPS = itertools.count(1)
_CODE_ATTRIBUTES = frozenset({"op", "target", "name", "type", "_args", "_kwargs"})
"""The attributes of a node that the generated code depends on."""


def last_edit(graph: fx.Graph) -> int:
    """The stamp of the last edit of a graph: it changes with every edit, and is never used twice.

    The first call for a graph visits all nodes, later ones cost the same for any graph. Creating,
    erasing and moving nodes are edits, and assignments to what a node calls and with what.
    Metadata is none.
    """
    return (graph if isinstance(graph, _StampedGraph) else _watch(graph))._last_edit


def _watch(graph: fx.Graph) -> _StampedGraph:
    # Nodes are made deep inside torch: changing the class is how they can have one of ours.
    graph.__class__ = _StampedGraph
    for node in (graph._root, *graph.nodes):
        node.__class__ = _StampedNode
    stamped = cast(_StampedGraph, graph)
    stamped._last_edit = next(_STAMPS)
    return stamped


class _StampedGraph(fx.Graph):
    """A graph whose nodes note their edits."""

    _last_edit: int

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.__class__ = _StampedNode
        return node


class _StampedNode(fx.Node):
    """A node that notes its edits in its graph."""

    graph: _StampedGraph

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in _CODE_ATTRIBUTES:
            self._stamp()

    def _update_args_kwargs(self, *args: Any) -> None:
        super()._update_args_kwargs(*args)
        self._stamp()

    def _replace_input_with(self, *args: Any) -> None:
        super()._replace_input_with(*args)
        self._stamp()

    def _prepend(self, *args: Any) -> None:
        super()._prepend(*args)
        self._stamp()

    def _remove_from_list(self) -> None:
        super()._remove_from_list()
        self._stamp()

    def _stamp(self) -> None:
        self.graph._last_edit = next(_STAMPS)
