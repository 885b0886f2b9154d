"""Repeated layers: stretches of a list that come again one after the other, as a model's layers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Repeat:
    """A stretch that comes several times.

    Attributes:
        first: the index at which it begins.
        period: its length.
        times: how often it comes, at least twice.
    """

    first: int
    period: int
    times: int

    @property
    def end(self) -> int:
        """The index behind the last one."""
        return self.first + self.period * self.times


SHORTEST = 4
"""Items of a stretch: shorter ones are no layers, but operators that happen to come again."""


def find_repeats(items: Sequence[Hashable]) -> list[Repeat]:
    """The stretches that cover most of a list, in order; they do not overlap.

    >>> find_repeats(["in", *"abcdabcdabcd", "out"])
    [Repeat(first=1, period=4, times=3)]
    """
    codes: dict[Hashable, int] = {}
    numbers = [codes.setdefault(item, len(codes)) for item in items]
    return sorted(_find(numbers, 0), key=lambda repeat: repeat.first)


def tied_with(items: Sequence[Hashable]) -> list[int]:
    """For each item the index of the first one that it repeats, which is its own where it is new.

    >>> tied_with(["in", *"abcdabcd", "out"])
    [0, 1, 2, 3, 4, 1, 2, 3, 4, 9]
    """
    found = list(range(len(items)))
    for repeat in find_repeats(items):
        for index in range(repeat.first, repeat.end):
            found[index] = repeat.first + (index - repeat.first) % repeat.period
    return found


def _find(numbers: list[int], offset: int) -> list[Repeat]:
    best = _longest(numbers)
    if best is None:
        return []
    before = _find(numbers[: best.first], offset)
    after = _find(numbers[best.end :], offset + best.end)
    own = Repeat(best.first + offset, best.period, best.times)
    return [*before, own, *after]


def _longest(numbers: list[int]) -> Repeat | None:
    """The repeat that covers most; of several the one with the shortest stretch."""
    import numpy as np

    row, best = np.asarray(numbers), None
    for period in range(SHORTEST, len(numbers) // 2 + 1):
        same = np.concatenate(([0], (row[period:] == row[:-period]).astype(np.int8), [0]))
        edges = np.diff(same)
        starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        if not len(starts):
            continue
        longest = int(np.argmax(ends - starts))
        times = int(ends[longest] - starts[longest]) // period + 1
        if times > 1 and (best is None or period * times > best.period * best.times):
            best = Repeat(int(starts[longest]), period, times)
    return best
