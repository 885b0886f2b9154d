"""Reachability in a graph given by a neighbor function."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def reached(starts: Iterable[T], neighbors: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yields each reachable node once, including the starts.

    The search is depth-first. The neighbors of a node are requested after it was yielded.

    Args:
        starts: start nodes, visited from the last to the first.
        neighbors: node -> adjacent nodes.

    >>> sorted(reached([6], lambda n: [n // 2, n // 3] if n > 1 else []))
    [0, 1, 2, 3, 6]
    """
    waiting = list(dict.fromkeys(starts))
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for neighbor in neighbors(node):
            if neighbor not in seen:
                seen.add(neighbor)
                waiting.append(neighbor)
