"""Points of a sweep, and the measurement of those that a journal lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from chop.runs import Journal, compute_key, has_numbers
from chop.runs.progress import Estimate, format_clock, say_line, work_bar
from chop.train.metric import Metric
from chop.train.tasks import CLASSIFICATION
from chop.workloads.fingerprints import (
    fingerprint_of_function,
    fingerprint_of_rows,
    fingerprint_of_weights,
)
from chop.workloads.workload import Workload


@dataclass(frozen=True)
class Point:
    """Measurement of one configuration.

    Attributes:
        label: name in the progress bar.
        settings: everything that determines the result; equal settings have equal results.
        measure: measures the point; returns plain numbers by name.
        kind: points of a kind take equally long, and share an estimate of the time left.
        names: numbers that every result has.
    """

    label: str
    settings: Mapping[str, Any]
    measure: Callable[[], Mapping[str, float]]
    kind: str = ""
    names: tuple[str, ...] = ()

    def find(self, journal: Journal) -> Mapping[str, float] | None:
        """Returns the result in a journal; None if there is none, or it lacks values."""
        return journal.find(self.settings, partial(has_numbers, names=self.names))


def measure_all(
    title: str,
    points: Sequence[Point],
    journal: Journal,
    metric: Metric = CLASSIFICATION.metric,
    costs: Mapping[str, float] | None = None,
) -> list[dict[str, float]]:
    """Returns the result of every point, from the journal or measured, with a progress bar.

    Prints the metric of each new point; in a pipe also the count and the time left.

    Args:
        title: title of the progress bar.
        points: points to measure.
        journal: journal of results.
        metric: metric of the results to print.
        costs: cost of a point of each kind, see `chop.runs.progress.Estimate`.
    Returns: one mapping per point, in their order.
    """
    # Equal settings, equal result: each is measured once.
    todo = {compute_key(point.settings): point for point in points if point.find(journal) is None}
    done = sum(compute_key(point.settings) not in todo for point in points)
    estimate = Estimate((point.kind for point in todo.values()), costs=costs)
    bar = work_bar(estimate)
    if done:
        bar.console.print(
            f"{done} of {len(points)} points are already in {journal.path}", markup=False
        )
    with bar if todo else nullcontext():
        task = bar.add_task(title, total=len(todo))
        for number, point in enumerate(todo.values(), 1):
            bar.update(task, description=f"{title}: {point.label}")
            estimate.begin(point.kind)
            result = journal.add(point.settings, point.measure())
            estimate.end()
            line = point.label
            if metric.name in result:
                line += f": {metric.format_value(result[metric.name])}"
            if not bar.console.is_terminal:
                remaining = f", {format_clock(estimate.seconds)} left" * (number < len(todo))
                line = f"{number} of {len(todo)}: {line}{remaining}"
            if line != point.label:
                say_line(bar.console, line)
            bar.advance(task)
        bar.update(task, description=title)
    return [journal.get(point.settings) for point in points]


def get_identity(workload: Workload) -> dict[str, str]:
    """Returns the identity of a workload: names, fingerprints of model and rows, and the metric."""
    metric = workload.task.metric.name
    judged = {} if metric == "accuracy" else {"task": workload.task.name, "metric": metric}
    if workload.judge is not None:
        judged["evaluate"] = fingerprint_of_function(workload.judge.function, workload.judge.code)
    return {
        **judged,
        "model": workload.name,
        "dataset": workload.dataset,
        "weights": fingerprint_of_weights(workload.model),
        "train": fingerprint_of_rows(workload.train),
        "test": fingerprint_of_rows(workload.test),
    }
