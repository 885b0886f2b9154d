"""Time left of a job, estimated from the measurements so far."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from statistics import mean
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.text import Text


class Estimate:
    """Seconds left: the mean time of each kind of measurement, times how many of it are left.

    Those that train take a hundred times as long as those that only measure, so that the pace of
    the last ones says nothing of the next.

    Args:
        kinds: of the measurements, one each.
        now: a clock in seconds.
    """

    def __init__(self, kinds: Iterable[str], now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._left = Counter(kinds)
        self._taken: defaultdict[str, list[float]] = defaultdict(list)
        self._running: tuple[str, float] | None = None
        self._share = 0.0

    def expect(self, kinds: Iterable[str]) -> None:
        """These are left, and no others."""
        self._left = Counter(kinds)

    def begin(self, kind: str) -> None:
        """A measurement of that kind runs from now on."""
        self._running, self._share = (kind, self._now()), 0.0

    def advance(self, share: float) -> None:
        """So much of the running measurement is done, 0 to 1."""
        self._share = share

    def end(self) -> None:
        """The measurement is over."""
        assert self._running is not None
        kind, began = self._running
        self._left[kind] -= 1
        self._taken[kind].append(self._now() - began)
        self._running = None

    @property
    def seconds(self) -> float | None:
        """None while a kind that is left has never been measured, not even in part."""
        left = +self._left
        means = {kind: mean(taken) for kind, taken in self._taken.items()}
        done = 0.0
        if self._running is not None:
            kind, began = self._running
            spent = self._now() - began
            if self._share:
                means.setdefault(kind, spent / self._share)
                done = self._share * means[kind]
            elif kind in means:
                done = min(spent, means[kind])
        if left.keys() - means.keys():
            return None
        return sum(means[kind] * count for kind, count in left.items()) - done


class TimeLeft(ProgressColumn):
    """`0:01:23 left`; a dash while that cannot be known."""

    def __init__(self, estimate: Estimate) -> None:
        super().__init__()
        self.estimate = estimate

    def render(self, task: Task) -> Text:
        """The column's text, at each refresh."""
        return Text(f"{_clock(self.estimate.seconds)} left")


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def work_bar(estimate: Estimate) -> Progress:
    """A bar with the number of measurements, the time since its start, and the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), Elapsed())
    return Progress(*columns, TimeLeft(estimate))


class Stages:
    """What a job measures and trains: one bar with the whole time left; in a pipe a line each.

    Args:
        kinds: of the stages, one each, as far as they are known.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        kinds = [*kinds]
        self._estimate = Estimate(kinds)
        self._bar = work_bar(self._estimate)
        self._task = self._bar.add_task("", total=len(kinds))

    def __enter__(self) -> Self:
        if self._bar.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.expect(())
        self._bar.stop()

    @property
    def _done(self) -> int:
        return round(self._bar.tasks[0].completed)

    def expect(self, kinds: Iterable[str]) -> None:
        """These stages are left, and no others."""
        kinds = [*kinds]
        self._estimate.expect(kinds)
        self._bar.update(self._task, total=self._done + len(kinds))

    @contextmanager
    def stage(self, kind: str, label: str) -> Iterator[Callable[[float], None]]:
        """One stage runs inside; what is given takes the share of it that is done, 0 to 1."""
        self._estimate.begin(kind)
        self._bar.update(self._task, description=label)
        yield self._estimate.advance
        self._estimate.end()
        self._bar.advance(self._task)
        if not self._bar.console.is_terminal:
            total, left = self._bar.tasks[0].total, _clock(self._estimate.seconds)
            self._bar.console.print(
                f"{self._done} of {total:.0f}: {label}, {left} left", markup=False
            )
