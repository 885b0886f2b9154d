"""Hierarchy of boxes and frames that can be ordered from top to bottom."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

Uses = Mapping[int, Sequence[int]]
"""Node -> nodes that read its result, all by position in the graph."""


@dataclasses.dataclass(frozen=True)
class Item:
    """Box, or frame that contains items. Sizes are in pixels.

    Attributes:
        key: unique among its siblings.
        leaves: positions of the nodes inside, in order.
        children: items of a frame; () for a box.
        width: of a box; the minimum for a frame.
        height: of a box.
    """

    key: str
    leaves: tuple[int, ...]
    children: tuple[Item, ...] = ()
    width: float = 0.0
    height: float = 0.0


def flow_between(items: Sequence[Item], uses: Uses) -> dict[str, set[str]]:
    """Returns the items that read a result of each item."""
    home = {leaf: item.key for item in items for leaf in item.leaves}
    flow: dict[str, set[str]] = {item.key: set() for item in items}
    for leaf, key in home.items():
        flow[key] |= {home[user] for user in uses.get(leaf, ()) if user in home} - {key}
    return flow


def in_order(items: Sequence[Item], uses: Uses) -> list[Item]:
    """Sorts items topologically, without those in a cycle or behind one."""
    flow = flow_between(items, uses)
    waiting = dict.fromkeys(flow, 0)
    for targets in flow.values():
        for target in targets:
            waiting[target] += 1
    by_key = {item.key: item for item in items}
    # Kahn's algorithm; ties follow the order in the graph.
    ready = [key for key, count in waiting.items() if count == 0]
    done = []
    while ready:
        done.append(by_key[key := ready.pop(0)])
        for target in sorted(flow[key], key=lambda name: by_key[name].leaves[0]):
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return done


def without_cycles(items: Sequence[Item], uses: Uses) -> list[Item]:
    """Returns the items in order, split if merging their nodes would create a cycle.

    A module that is called twice, with other nodes in between, becomes one item per call.
    """
    ordered = in_order(items, uses)
    if len(ordered) == len(items):
        return ordered
    positions = sorted(leaf for item in items for leaf in item.leaves)
    order = {leaf: position for position, leaf in enumerate(positions)}
    return in_order([part for item in items for part in _cut(item, order)], uses)


def _cut(item: Item, order: Mapping[int, int]) -> list[Item]:
    """Splits an item wherever another node runs between two of its own."""
    runs: list[list[int]] = []
    for leaf in item.leaves:
        if runs and order[leaf] == order[runs[-1][-1]] + 1:
            runs[-1].append(leaf)
        else:
            runs.append([leaf])
    if len(runs) == 1:
        return [item]
    return [_only(item, run, f"{item.key}#{number}") for number, run in enumerate(runs)]


def _only(item: Item, leaves: Iterable[int], key: str) -> Item:
    selected = set(leaves)
    children = tuple(
        _only(child, selected & {*child.leaves}, child.key)
        for child in item.children
        if selected & {*child.leaves}
    )
    return dataclasses.replace(item, key=key, leaves=tuple(sorted(selected)), children=children)
