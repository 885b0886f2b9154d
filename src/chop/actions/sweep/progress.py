"""How long a sweep will still take, from what its points have taken so far."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from statistics import mean

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.text import Text


class Estimate:
    """Seconds left: the mean time of each kind of point, times how many of it are left.

    Points that train take a hundred times as long as those that only measure, so that the pace of
    the last points says nothing of the next.

    Args:
        kinds: of the points to measure, one each.
        now: a clock in seconds.
    """

    def __init__(self, kinds: Iterable[str], now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._left = Counter(kinds)
        self._taken: defaultdict[str, list[float]] = defaultdict(list)
        self._running: tuple[str, float] | None = None

    def begin(self, kind: str) -> None:
        """A point of that kind is measured from now on."""
        self._running = kind, self._now()

    def end(self) -> None:
        """The point is measured."""
        assert self._running is not None
        kind, began = self._running
        self._left[kind] -= 1
        self._taken[kind].append(self._now() - began)
        self._running = None

    @property
    def seconds(self) -> float | None:
        """None while a kind of point that is left has never been measured."""
        left = +self._left
        if left.keys() - self._taken.keys():
            return None
        means = {kind: mean(self._taken[kind]) for kind in left}
        total = sum(means[kind] * count for kind, count in left.items())
        if self._running is None:
            return total
        kind, began = self._running
        return total - min(self._now() - began, means[kind])


class TimeLeft(ProgressColumn):
    """`0:01:23 left`; a dash while that cannot be known."""

    def __init__(self, estimate: Estimate) -> None:
        super().__init__()
        self.estimate = estimate

    def render(self, task: Task) -> Text:
        """The column's text, at each refresh."""
        seconds = self.estimate.seconds
        if seconds is None:
            return Text("-:--:-- left")
        minutes, rest = divmod(round(seconds), 60)
        return Text(f"{minutes // 60}:{minutes % 60:02}:{rest:02} left")


def sweep_bar(estimate: Estimate) -> Progress:
    """A bar with the number of points, the time since its start, and the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), Elapsed())
    return Progress(*columns, TimeLeft(estimate))
