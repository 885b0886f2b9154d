"""Points of a sweep: what each is measured by, and measuring those that a journal lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """One thing to measure.

    Attributes:
        label: what the progress bar calls it.
        settings: all that its result depends on; equal settings, equal result.
        measure: does the work; returns plain numbers by name.
        kind: points of one kind take about as long; they share one estimate of the time left.
        names: numbers that its result always has.
    """

    label: str
    settings: Mapping[str, Any]
    measure: Callable[[], Mapping[str, float]]
    kind: str = ""
    names: tuple[str, ...] = ()

    def find(self, journal: Journal) -> Mapping[str, float] | None:
        """The result in a journal; None: there is none, or it lacks numbers of the point."""
        return journal.find(self.settings, partial(has_numbers, names=self.names))


def measure_all(
    title: str,
    points: Sequence[Point],
    journal: Journal,
    metric: Metric = CLASSIFICATION.metric,
    costs: Mapping[str, float] | None = None,
) -> list[dict[str, float]]:
    """The result of every point, measured or remembered, with a progress bar.

    The metric of each is printed as it is there; in a pipe with how many are, and the time left.

    Args:
        title: title of the progress bar.
        points: points to measure.
        journal: remembers results.
        metric: metric of the results to print.
        costs: cost of a point of each kind, see `chop.runs.progress.Estimate`.
    Returns: one mapping per point, in their order.
    """
    # Equal settings, equal result: each is measured once.
    todo = {compute_key(point.settings): point for point in points if point.find(journal) is None}
    done = sum(compute_key(point.settings) not in todo for point in points)
    estimate = Estimate((point.kind for point in todo.values()), costs=costs)
    with work_bar(estimate) as bar:
        if done:
            bar.console.print(
                f"{done} of {len(points)} points are there already: {journal.path}", markup=False
            )
        task = bar.add_task(title, total=len(todo))
        for number, point in enumerate(todo.values(), 1):
            bar.update(task, description=f"{title}: {point.label}")
            estimate.begin(point.kind)
            result = journal.add(point.settings, point.measure())
            estimate.end()
            said = point.label
            if metric.name in result:
                said += f": {metric.format_value(result[metric.name])}"
            if not bar.console.is_terminal:
                said = f"{number} of {len(todo)}: {said}, {format_clock(estimate.seconds)} left"
            if said != point.label:
                say_line(bar.console, said)
            bar.advance(task)
        bar.update(task, description=title)
    return [journal.get(point.settings) for point in points]


def get_identity(workload: Workload) -> dict[str, str]:
    """Identity of a workload: names and fingerprints of its model and rows, and its metric."""
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
