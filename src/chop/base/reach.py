"""Reachability: everything that can be reached from some things by following their neighbors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def reached(starts: Iterable[T], neighbors: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yields each thing that can be reached once, the starts included.

    The search is depth-first, and asks for the neighbors of a thing after it was yielded.

    Args:
        starts: where the search begins; the last one is visited first.
        neighbors: a thing -> those that are one step away.

    >>> sorted(reached([6], lambda n: [n // 2, n // 3] if n > 1 else []))
    [0, 1, 2, 3, 6]
    """
    waiting = list(dict.fromkeys(starts))
    seen = set(waiting)
    while waiting:
        found = waiting.pop()
        yield found
        for each in neighbors(found):
            if each not in seen:
                seen.add(each)
                waiting.append(each)
