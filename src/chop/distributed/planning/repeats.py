"""Detection of repeated layers: consecutive repetitions in a list."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Repeat:
    """A repeated sequence.

    Attributes:
        first: start index.
        period: length of the sequence.
        times: number of repetitions, at least two.
    """

    first: int
    period: int
    times: int

    @property
    def end(self) -> int:
        """Index after the last repetition."""
        return self.first + self.period * self.times


SHORTEST = 4
"""Minimum length of a sequence. Shorter ones are repeated operators rather than layers."""


def find_repeats(items: Sequence[Hashable]) -> list[Repeat]:
    """Returns non-overlapping repetitions that cover most of a list, in order.

    >>> find_repeats(["in", *"abcdabcdabcd", "out"])
    [Repeat(first=1, period=4, times=3)]
    """
    codes: dict[Hashable, int] = {}
    numbers = [codes.setdefault(item, len(codes)) for item in items]
    return sorted(_find(numbers, 0), key=lambda repeat: repeat.first)


def tied_with(items: Sequence[Hashable]) -> list[int]:
    """Returns, for each item, the index of the first item that it repeats, or its own index.

    >>> tied_with(["in", *"abcdabcd", "out"])
    [0, 1, 2, 3, 4, 1, 2, 3, 4, 9]
    """
    firsts = list(range(len(items)))
    for repeat in find_repeats(items):
        for index in range(repeat.first, repeat.end):
            firsts[index] = repeat.first + (index - repeat.first) % repeat.period
    return firsts


def _find(numbers: list[int], offset: int) -> list[Repeat]:
    best = _longest(numbers)
    if best is None:
        return []
    # The rest on both sides may have repetitions of its own.
    before = _find(numbers[: best.first], offset)
    after = _find(numbers[best.end :], offset + best.end)
    own = Repeat(best.first + offset, best.period, best.times)
    return [*before, own, *after]


def _longest(numbers: list[int]) -> Repeat | None:
    """Returns the repetition with the largest coverage; among equals the shortest period."""
    import numpy as np

    row, best = np.asarray(numbers), None
    for period in range(SHORTEST, len(numbers) // 2 + 1):
        # A run of n equal items at a distance of one period repeats n // period times.
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
