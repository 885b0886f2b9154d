"""Progress bar of a running search: finished trials, best value, time remaining."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from chop.search.result import Result, TrialRecord

REFRESH_SECONDS = 0.5
ENDED = ("measured", "pruned", "failed")
LINES = ("cached", "pruned", "failed")
MAX_LINES = 20
"""Number of trials between refreshes that are summarized in one line instead of a line each."""


@contextmanager
def live_progress(
    read: Callable[[], Result], until: int, is_visible: bool
) -> Iterator[Callable[[], None]]:
    """Yields a callback to call after each trial; it calls `read` at most twice a second.

    A terminal shows a progress bar. Pipes and files get a line for each trial.
    """
    if not is_visible:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from chop.runs.progress import format_clock, say_line

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, TextColumn("{task.fields[left]} left"))
    has_bar = bar.console.is_terminal or bar.console.is_jupyter
    lines = None if has_bar else _TrialLines(until)
    began: tuple[float, int] | None = None
    task, due = bar.add_task("searching", total=until, left=format_clock(None)), 0.0

    def show(now: bool = False) -> None:
        nonlocal due, began
        if not now and time.monotonic() < due:
            return
        due = time.monotonic() + REFRESH_SECONDS
        result = read()
        done = sum(result.counts.get(outcome, 0) for outcome in ENDED)
        # The pace excludes trials of earlier runs.
        began = began or (time.monotonic(), done)
        remaining = format_clock(_remaining_seconds(*began, done, until))
        bar.update(task, completed=done, description=headline(result), left=remaining)
        ending = f", {remaining} left" * (done < until)
        for line in lines.new(result, ending) if lines else ():
            say_line(bar.console, line)

    with bar if has_bar else nullcontext():
        show()
        yield show
        show(now=True)


def _remaining_seconds(began: float, before: int, done: int, until: int) -> float | None:
    """Returns the remaining seconds at the pace of this run; None before its first trial."""
    if done >= until:
        return 0.0
    if done <= before:
        return None
    return (time.monotonic() - began) / (done - before) * (until - done)


class _TrialLines:
    """Progress lines for newly finished trials, for output other than a terminal.

    Args:
        until: target number of trials.
    """

    def __init__(self, until: int) -> None:
        self.until, self._reported = until, set[int]()
        self._is_first = True

    def new(self, result: Result, ending: str) -> Iterator[str]:
        """Yields a line for each new trial, or one line for many and for earlier runs."""
        ended = [t for t in result.trials if t.outcome in ENDED]
        fresh = [t for t in ended if t.number not in self._reported]
        self._reported |= {t.number for t in fresh}
        is_first, self._is_first = self._is_first, False
        if not fresh:
            return
        end = f"{len(ended)} of {self.until}: "
        if is_first or len(fresh) > MAX_LINES:
            yield f"{end}{headline(result)}{ending}"
            return
        for place, trial in enumerate(fresh, len(ended) - len(fresh) + 1):
            text = _values(result, trial) or trial.outcome
            number = f"{place} of {self.until}: trial {trial.number}, {text}"
            later = {t.number for t in fresh[place - len(ended) + len(fresh) :]}
            until_here = Result(
                result.goals, tuple(t for t in result.trials if t.number not in later)
            )  # several trials may end between two refreshes
            yield f"{number}; {headline(until_here)}{ending}"


def headline(result: Result) -> str:
    """Returns the best value so far and the other outcomes in one line."""
    parts = [f"{result.counts[name]} {name}" for name in LINES if name in result.counts]
    if result.best is None:
        begun = result.why_nothing if result.failed else "begun"
        return ", ".join(["no feasible trial yet", *parts]) if result.measured else begun
    return ", ".join([f"best {_values(result, result.best)}", *parts])


def _values(result: Result, trial: TrialRecord) -> str:
    """Formats the value of a trial for each goal; "" for one without values."""
    values = trial.values
    return ", ".join(f"{g.name} {values[g.name]:.4g}" for g in result.goals if g.name in values)
