"""Node list: serializes a graph as plain data and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from chop.captured.huggingface.cache_names import rename_cache_field
from chop.captured.nodes.targets import function_reference, resolve_reference


@dataclass(frozen=True)
class NodeRef:
    """Reference to a node inside the arguments of a `NodeRecord`."""

    name: str


@dataclass(frozen=True)
class NodeRecord:
    """One node as plain data.

    Args:
        op: `placeholder`, `get_attr`, `call_function`, `call_method`, `call_module` or `output`.
        name: its unique name.
        target: a dotted path, a method name, or a function as `"module:qualname"`.
        args: plain values and `NodeRef`s in tuples, lists, dicts and slices.
        kwargs: keyword arguments of the same kinds.
    """

    op: str
    name: str
    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def graph_to_nodes(graph: fx.Graph) -> list[NodeRecord]:
    """Returns the nodes of a graph as plain data, in order.

    Raises:
        ValueError: a function target cannot be imported by name.
    """
    return [
        NodeRecord(
            node.op,
            node.name,
            node.target if isinstance(node.target, str) else function_reference(node.target),
            _map_arguments(node.args, fx.Node, lambda value: NodeRef(value.name)),
            _map_arguments(dict(node.kwargs), fx.Node, lambda value: NodeRef(value.name)),
        )
        for node in graph.nodes
    ]


def nodes_to_graph(
    records: Iterable[NodeRecord], resolve: Callable[[str], Any] = resolve_reference
) -> fx.Graph:
    """Returns the graph described by a node list.

    Args:
        records: in topological order.
        resolve: returns a function by `"module:qualname"`. Replace it to restrict the functions
            that a file may name.
    """
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}

    def find_node(reference: NodeRef) -> fx.Node:
        return nodes[reference.name]

    for record in records:
        target = resolve(record.target) if record.op == "call_function" else record.target
        nodes[record.name] = graph.create_node(
            record.op,
            target,
            _map_arguments(record.args, NodeRef, find_node),
            _map_arguments(rename_cache_field(target, record.kwargs), NodeRef, find_node),
            name=record.name,
        )
    return graph


def _map_arguments(value: Any, kind: type, replace: Callable[[Any], Any]) -> Any:
    """Replaces every value of one type in nested tuples, lists, dicts and slices."""
    if isinstance(value, kind):
        return replace(value)
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return slice(*(_map_arguments(part, kind, replace) for part in parts))
    if isinstance(value, Mapping):
        return {key: _map_arguments(item, kind, replace) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = (_map_arguments(item, kind, replace) for item in value)
        return tuple(items) if isinstance(value, tuple) else list(items)
    return value
