"""Two graphs as one, and what became of each node from the first to the second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import fx

from chop.captured.module import CapturedModule
from chop.ir.difference import Difference, difference

NEW, GONE, CHANGED, SAME = "new", "gone", "changed", "the same"
MARKS = {NEW: "+ ", GONE: "- ", CHANGED: "~ ", SAME: ""}
"""Ahead of a node's name, for those who see no colors."""


@dataclass(frozen=True)
class Nodes:
    """The nodes of one graph, or of two in one order.

    Attributes:
        nodes: in order; one that both graphs have is there once.
        models: whose each of them is.
        uses: by place, the places of the nodes that read its result in either graph.
        changes: what became of each: "new", "gone", "changed" or "the same"; () for one graph.
    """

    nodes: list[fx.Node]
    models: list[CapturedModule]
    uses: dict[int, list[int]]
    changes: list[str]


def list_nodes(model: CapturedModule) -> Nodes:
    """Those of one graph."""
    nodes = list(model.graph.nodes)
    place = {node: n for n, node in enumerate(nodes)}
    return Nodes(nodes, [model] * len(nodes), _uses(place), [])


def merge(model: CapturedModule, other: CapturedModule) -> Nodes:
    """Those of two graphs; a changed node is the second's."""
    found = difference(model, other)
    twins = {twin: node for node, twin in (found.same | found.changed).items()}
    nodes = list(_in_order(model, other, twins))
    place = {node: n for n, node in enumerate(nodes)}
    uses = _uses(place | {twin: place[node] for twin, node in twins.items()})
    changes = [_change(node, found) for node in nodes]
    shown = [found.changed.get(node, node) for node in nodes]
    seconds = {*found.new, *found.changed.values()}
    return Nodes(shown, [other if n in seconds else model for n in shown], uses, changes)


def _in_order(
    model: CapturedModule, other: CapturedModule, twins: dict[fx.Node, fx.Node]
) -> Iterator[fx.Node]:
    """The first graph's nodes; new ones behind the node that they follow in the second graph."""
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
    """Of either graph; what a moved node would read from below is left out."""
    found: dict[int, set[int]] = {n: set() for n in place.values()}
    for node, n in place.items():
        found[n] |= {place[user] for user in node.users if place[user] > n}
    return {n: sorted(users) for n, users in found.items()}


def _change(node: fx.Node, found: Difference) -> str:
    if node in found.same:
        return SAME
    if node in found.changed:
        return CHANGED
    return GONE if node in found.gone else NEW
