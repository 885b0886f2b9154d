"""Edit stamps of a `torch.fx.Graph`, which detect changes in constant time.

Uses the methods of `torch._C._NodeBase` that all edits of a node call. Tested with torch 2.13;
`tests/private/test_graph_edits.py` fails first if torch changes them.
"""

from __future__ import annotations

import itertools
from typing import Any, cast

from torch import fx

_STAMPS = itertools.count(1)
_CODE_ATTRIBUTES = frozenset({"op", "target", "name", "type", "_args", "_kwargs"})
"""Node attributes that the generated code depends on."""


def last_edit(graph: fx.Graph) -> int:
    """Returns the stamp of a graph's last edit, which changes with each edit and is never reused.

    The first call for a graph visits all nodes; later calls take constant time. Creating, erasing
    and moving nodes are edits, and so are assignments to a node's target and arguments. Metadata
    changes are not.
    """
    return (graph if isinstance(graph, _StampedGraph) else _watch(graph))._last_edit


def _watch(graph: fx.Graph) -> _StampedGraph:
    # Nodes are created deep inside torch, so their class is changed afterwards.
    graph.__class__ = _StampedGraph
    for node in (graph._root, *graph.nodes):
        node.__class__ = _StampedNode
    stamped = cast(_StampedGraph, graph)
    stamped._last_edit = next(_STAMPS)
    return stamped


class _StampedGraph(fx.Graph):
    """Graph whose nodes record their edits."""

    _last_edit: int

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.__class__ = _StampedNode
        return node


class _StampedNode(fx.Node):
    """Node that records its edits in its graph."""

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
