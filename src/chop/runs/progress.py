"""Progress and remaining time of a job, estimated from earlier measurements."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from statistics import mean
from typing import Self

from rich import get_console
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.text import Text

LINE_SECONDS = 10.0
"""Seconds between progress lines of a long step in a pipe."""
STAGE_SECONDS = 60.0
"""Seconds between progress lines of a job's long stage in a pipe."""


_steps: ContextVar[Iterator[int] | None] = ContextVar("numbers of announced steps", default=None)


@contextmanager
def announced_steps() -> Iterator[None]:
    """Context manager in which `announce_step` prints, for commands without a progress bar."""
    token = _steps.set(count(1))
    try:
        yield
    finally:
        _steps.reset(token)


def announce_step(text: str) -> None:
    """Prints a finished step with its number, inside `announced_steps`."""
    numbers = _steps.get()
    if numbers is not None:
        say_line(get_console(), f"{next(numbers)}: {text}")


def say_line(console: Console, text: str) -> None:
    """Prints one line of progress without wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


class Estimate:
    """Estimator of the remaining time from the mean time of each kind of measurement.

    Kinds are averaged separately, because training takes far longer than measuring. A kind without
    measurements is assumed to take as long as the fastest other kind, scaled by the ratio of their
    costs.

    Args:
        kinds: kind of each measurement.
        now: clock in seconds.
        costs: cost of each kind in any common unit. Default: 1.
    """

    def __init__(
        self,
        kinds: Iterable[str],
        now: Callable[[], float] = time.monotonic,
        costs: Mapping[str, float] | None = None,
    ) -> None:
        self._now, self._costs = now, costs or {}
        self._remaining = Counter(kinds)
        self._taken: defaultdict[str, list[float]] = defaultdict(list)
        self._running: tuple[str, float] | None = None
        self._share = 0.0

    def expect(self, kinds: Iterable[str]) -> None:
        """Sets the kinds of the remaining measurements."""
        self._remaining = Counter(kinds)

    def begin(self, kind: str) -> None:
        """Starts the clock of a measurement of this kind."""
        self._running, self._share = (kind, self._now()), 0.0

    def advance(self, share: float) -> None:
        """Sets the finished share of the running measurement, 0 to 1."""
        self._share = share

    def end(self) -> None:
        """Ends the running measurement."""
        assert self._running is not None
        kind, began = self._running
        self._remaining[kind] -= 1
        self._taken[kind].append(self._now() - began)
        self._running = None

    @property
    def seconds(self) -> float | None:
        """Remaining seconds. None until something was measured, at least in part."""
        remaining = +self._remaining
        means = {kind: mean(taken) for kind, taken in self._taken.items()}
        running, spent = None, 0.0
        if self._running is not None:
            running, began = self._running
            spent = self._now() - began
            if self._share:
                means.setdefault(running, spent / self._share)
        if remaining and not means:
            return None
        # One-time work in the first measurement only makes the estimate pessimistic.
        pace = min((x / self._cost(kind) for kind, x in means.items()), default=0.0)
        each = {kind: means.get(kind, pace * self._cost(kind)) for kind in remaining}
        whole = each.get(running or "", 0.0)
        done = self._share * whole if self._share else min(spent, whole)
        return sum(each[kind] * count for kind, count in remaining.items()) - done

    def _cost(self, kind: str) -> float:
        return self._costs.get(kind, 1.0)


class TimeLeft(ProgressColumn):
    """Column `0:01:23 left`, with dashes while the time is unknown."""

    def __init__(self, estimate: Estimate) -> None:
        super().__init__()
        self.estimate = estimate

    def render(self, task: Task) -> Text:
        """Returns the text of the column at each refresh."""
        return Text(f"{format_clock(self.estimate.seconds)} left")


def format_clock(seconds: float | None) -> str:
    """Formats hours, minutes and seconds. None becomes dashes.

    >>> format_clock(83.4), format_clock(None)
    ('0:01:23', '-:--:--')
    """
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def work_bar(estimate: Estimate) -> Progress:
    """Returns a bar with the number of measurements, the elapsed and the remaining time."""
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), Elapsed())
    return Progress(*columns, TimeLeft(estimate))


class Stages:
    """Progress of a job's stages: one bar with the remaining time, or in a pipe a line each.

    The bar counts steps. A step is a stage, or several stages whose number is not known before
    (`step`), so that the number of steps never grows.

    Args:
        kinds: kind of each stage, as far as they are known.
        costs: cost of a stage of each kind, see `Estimate`.
        steps: number of steps. Default: one for each stage.
    """

    def __init__(
        self,
        kinds: Iterable[str],
        costs: Mapping[str, float] | None = None,
        steps: int | None = None,
    ) -> None:
        kinds = [*kinds]
        self._estimate = Estimate(kinds, costs=costs)
        self._bar = work_bar(self._estimate)
        self._total = len(kinds) if steps is None else steps
        self._task = self._bar.add_task("", total=self._total)
        self._done, self._is_inside = 0, False

    def __enter__(self) -> Self:
        if self._bar.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.expect(())
        if self._bar.console.is_terminal:
            self._bar.stop()

    def expect(self, kinds: Iterable[str], steps: int | None = None) -> None:
        """Sets the remaining stages.

        Args:
            kinds: kind of each stage.
            steps: number of steps without the running one. Default: one for each stage, or none
                while a step runs. The number never grows.
        """
        kinds = [*kinds]
        self._estimate.expect(kinds)
        if steps is None:
            steps = 0 if self._is_inside else len(kinds)
        self._total = min(self._total, self._done + self._is_inside + steps)
        self._bar.update(self._task, total=self._total)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Context manager whose stages count as one step."""
        self._is_inside = True
        yield
        self._is_inside = False
        self._advance()

    @contextmanager
    def stage(self, kind: str, label: str) -> Iterator[Callable[[float], None]]:
        """Context manager of one stage; yields a callback for its finished share, 0 to 1."""
        self._estimate.begin(kind)
        self._bar.update(self._task, description=label)
        yield self._estimate.advance if self._bar.console.is_terminal else self._lines(label)
        self._estimate.end()
        if not self._is_inside:
            self._advance()
        if not self._bar.console.is_terminal:
            number = self._done + self._is_inside
            remaining = f", {format_clock(self._estimate.seconds)} left" * (number < self._total)
            say_line(self._bar.console, f"{number} of {self._total}: {label}: done{remaining}")

    def _lines(self, label: str) -> Callable[[float], None]:
        """Returns a callback for the finished share of a stage that prints a line now and then."""
        printed = time.monotonic()

        def advance(share: float) -> None:
            nonlocal printed
            self._estimate.advance(share)
            if (now := time.monotonic()) - printed >= STAGE_SECONDS:
                printed = now
                remaining = f", {format_clock(self._estimate.seconds)} left" * (share < 1)
                say_line(self._bar.console, f"{label}: {share:.0%}{remaining}")

        return advance

    def _advance(self) -> None:
        self._done += 1
        self._total = max(self._total, self._done)
        self._bar.update(self._task, completed=self._done, total=self._total)


@contextmanager
def labeled_bar(label: str, steps: int) -> Iterator[Callable[[], None]]:
    """Shows a bar of equal steps, or in a pipe a line now and then and one at the end.

    Returns: function to call after each step.
    """
    bar = Progress()
    console, done = bar.console, count(1)
    if console.is_terminal or console.is_jupyter:
        with bar:
            task = bar.add_task(label, total=steps)
            yield lambda: bar.advance(task)
        return
    began = printed = time.monotonic()

    def advance() -> None:
        nonlocal printed
        now, number = time.monotonic(), next(done)
        if number == steps or now - printed >= LINE_SECONDS:
            printed = now
            remaining = f", {format_clock((now - began) / number * (steps - number))} left"
            say_line(console, f"{label}: {number / steps:.0%}{remaining * (number < steps)}")

    yield advance
