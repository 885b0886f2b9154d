"""Failure detection by heartbeats: silent seconds of each process.

The caller decides how to react: a search takes over the trial of a silent worker
(`chop.search.workers`), a sharded run ends (`chop.distributed.peers`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

Name = TypeVar("Name")


class SilenceCounter(Generic[Name]):
    """Counter of the seconds in which an observer received no heartbeat from each process.

    A heartbeat is a change of a process's entry in a shared store, such as a counter. Clocks of
    different machines are not compared. Time without observations counts up to a limit, so that a
    stalled observer does not declare other processes silent.

    Attributes:
        seconds: silent seconds of each process in the last observation.

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
            entries: current entries by process. Processes without an entry are removed.
            longest_s: maximum number of seconds counted since the last observation.
        """
        now = time.monotonic()
        passed = 0.0 if self._observed is None else min(now - self._observed, longest_s)
        self.seconds = {
            name: self.seconds.get(name, 0.0) + passed if self._entries.get(name) == entry else 0.0
            for name, entry in entries.items()
        }
        self._entries, self._observed = dict(entries), now

    def include(self, names: Iterable[Name]) -> None:
        """Adds processes that joined since the last observation, with 0 s."""
        self.seconds = dict.fromkeys(names, 0.0) | self.seconds
