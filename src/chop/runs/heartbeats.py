"""Failure detection by heartbeats: seconds for which each process has sent none.

What follows from silence is the caller's: a search takes over the trial of a silent worker
(`chop.search.workers`), a sharded run ends (`chop.distributed.peers`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

Name = TypeVar("Name")


class SilenceCounter(Generic[Name]):
    """Adds up the seconds in which one observer saw no heartbeat of each process.

    A heartbeat is a change of a process's entry in a shared store, as a count. Clocks of machines
    are not compared, and time without observations hardly counts: where the observer itself was
    stopped or its machine stalled, no other process is silent for that.

    Attributes:
        seconds: by process, of those in the last observation.

    Example:
        >>> counter = SilenceCounter()
        >>> counter.observe({"a": 1}, longest_s=4.0)
        >>> counter.seconds
        {'a': 0.0}
    """

    def __init__(self) -> None:
        self.seconds: dict[Name, float] = {}
        self._entries: Mapping[Name, object] = {}
        self._observed: float | None = None

    def observe(self, entries: Mapping[Name, object], longest_s: float) -> None:
        """Compares the entries with those of the last observation.

        Args:
            entries: by process, as they are now; others are forgotten.
            longest_s: seconds since the last observation that count at most.
        """
        now = time.monotonic()
        passed = 0.0 if self._observed is None else min(now - self._observed, longest_s)
        self.seconds = {
            name: self.seconds.get(name, 0.0) + passed if self._entries.get(name) == entry else 0.0
            for name, entry in entries.items()
        }
        self._entries, self._observed = dict(entries), now

    def include(self, names: Iterable[Name]) -> None:
        """Begins at 0 s for processes that joined since the last observation."""
        self.seconds = dict.fromkeys(names, 0.0) | self.seconds
