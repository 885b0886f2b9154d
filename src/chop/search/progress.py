"""Progress bar of a running search: trials done, best so far, time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from chop.search.result import Result

REFRESH_SECONDS = 0.5
ENDED = ("measured", "pruned", "failed")
SHOWN = ("cached", "pruned", "failed")


@contextmanager
def live_progress(
    read: Callable[[], Result], until: int, shown: bool
) -> Iterator[Callable[[], None]]:
    """Yields what to call after each trial; `read` is called at most twice a second."""
    if not shown:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft())
    with Progress(*columns) as bar:
        task = bar.add_task("searching", total=until)
        due = 0.0

        def show(now: bool = False) -> None:
            nonlocal due
            if now or time.monotonic() >= due:
                due = time.monotonic() + REFRESH_SECONDS
                result = read()
                done = sum(result.counts.get(outcome, 0) for outcome in ENDED)
                bar.update(task, completed=done, description=headline(result))

        show()
        yield show
        show(now=True)


def headline(result: Result) -> str:
    """The best so far and what else happened, in one line."""
    parts = [f"{result.counts[name]} {name}" for name in SHOWN if name in result.counts]
    if result.best is None:
        begun = result.why_nothing if result.failed else "begun"
        return ", ".join(["nothing feasible yet", *parts]) if result.measured else begun
    values = ", ".join(f"{g.name} {result.best.values[g.name]:.4g}" for g in result.goals)
    return ", ".join([f"best {values}", *parts])
