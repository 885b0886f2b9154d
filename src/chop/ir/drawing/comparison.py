"""Merge of two graphs into one picture, with the change of each node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import fx

from chop.captured.module import CapturedModule
from chop.ir.difference import Difference, difference

NEW, GONE, CHANGED, SAME = "new", "gone", "changed", "the same"
MARKS = {NEW: "+ ", GONE: "- ", CHANGED: "~ ", SAME: ""}
"""Text before a node's name, which shows the change without colors."""


@dataclass(frozen=True)
class Nodes:
    """Nodes of one graph, or of two merged graphs.

    Attributes:
        nodes: in order; a node of both graphs appears once.
        models: the model that each node belongs to.
        uses: position -> positions of the nodes that read its result in either graph.
        changes: "new", "gone", "changed" or "the same" for each node; () for one graph.
    """

    nodes: list[fx.Node]
    models: list[CapturedModule]
    uses: dict[int, list[int]]
    changes: list[str]


def list_nodes(model: CapturedModule) -> Nodes:
    """Returns the nodes of one graph."""
    nodes = list(model.graph.nodes)
    place = {node: n for n, node in enumerate(nodes)}
    return Nodes(nodes, [model] * len(nodes), _uses(place), [])


def merge(model: CapturedModule, other: CapturedModule) -> Nodes:
    """Merges the nodes of two graphs; changed nodes are taken from the second."""
    diff = difference(model, other)
    twins = {twin: node for node, twin in (diff.same | diff.changed).items()}
    nodes = list(_in_order(model, other, twins))
    place = {node: n for n, node in enumerate(nodes)}
    uses = _uses(place | {twin: place[node] for twin, node in twins.items()})
    changes = [_change(node, diff) for node in nodes]
    merged = [diff.changed.get(node, node) for node in nodes]
    seconds = {*diff.new, *diff.changed.values()}
    return Nodes(merged, [other if n in seconds else model for n in merged], uses, changes)


def _in_order(
    model: CapturedModule, other: CapturedModule, twins: dict[fx.Node, fx.Node]
) -> Iterator[fx.Node]:
    """Orders the first graph's nodes and puts new nodes after their predecessor in the second."""
    behind: dict[fx.Node | None, list[fx.Node]] = {}
    ahead: fx.Node | None = None
    for node in other.graph.nodes:
        if node in twins:
            ahead = twins[node]
        else:
            behind.setdefault(ahead, []).append(node)
    yield from behind.get(None, ())
    for node in model.graph.nodes:
        yield node
        yield from behind.get(node, ())


def _uses(place: dict[fx.Node, int]) -> dict[int, list[int]]:
    """Returns the readers of each node in either graph, without edges that point upwards."""
    readers: dict[int, set[int]] = {n: set() for n in place.values()}
    for node, n in place.items():
        readers[n] |= {place[user] for user in node.users if place[user] > n}
    return {n: sorted(users) for n, users in readers.items()}


def _change(node: fx.Node, diff: Difference) -> str:
    if node in diff.same:
        return SAME
    if node in diff.changed:
        return CHANGED
    return GONE if node in diff.removed else NEW
