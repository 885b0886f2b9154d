"""Finished points on disk, so that a killed sweep goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.actions.interrupt import points_are_kept, told_when_interrupted
from chop.actions.subject import Subject, fingerprint_of_rows, fingerprint_of_weights
from chop.actions.sweep.progress import Estimate, sweep_bar
from chop.files import make_folder, writing
from chop.train.tasks import CLASSIFICATION, Metric


@dataclass(frozen=True)
class Point:
    """One thing to measure.

    Attributes:
        label: what the progress bar calls it.
        settings: all that its result depends on; equal settings, equal result.
        measure: does the work; returns plain numbers by name.
        kind: points of one kind take about as long; the time left is told by it.
    """

    label: str
    settings: Mapping[str, Any]
    measure: Callable[[], Mapping[str, float]]
    kind: str = ""


class Journal:
    """Results by settings, one JSON line each, written the moment they are there.

    Points of other settings in the same file stay and do no harm. A line that was cut short by a
    kill is passed over: that point is measured again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, dict[str, float]] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        for line in lines:
            try:
                entry = json.loads(line)
                self._known[_digest(entry["settings"])] = entry["result"]
            except (ValueError, KeyError, TypeError):
                continue

    def find(self, settings: Mapping[str, Any]) -> dict[str, float] | None:
        """What was measured with these settings, if it was."""
        return self._known.get(_digest(settings))

    def get(self, settings: Mapping[str, Any]) -> dict[str, float]:
        """What was measured with these settings; KeyError if nothing was."""
        return self._known[_digest(settings)]

    def add(self, settings: Mapping[str, Any], result: Mapping[str, float]) -> dict[str, float]:
        """Notes a result; it is on the disk when this returns."""
        make_folder(self.path.parent)
        line = json.dumps({"settings": settings, "result": result}, sort_keys=True, default=str)
        with writing(self.path), self.path.open("a+b") as file:
            # What a kill left of the last line must not swallow this one.
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
            torn = bool(size) and file.read(1) != b"\n"
            file.write(b"\n" * torn + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._known[_digest(settings)] = dict(result)
        return dict(result)


def measure_all(
    title: str, points: Sequence[Point], journal: Journal, metric: Metric = CLASSIFICATION.metric
) -> list[dict[str, float]]:
    """The result of every point, measured or remembered, with a progress bar.

    The metric of each is printed as it is there.

    Returns: one mapping per point, in their order.
    """
    # Equal settings, equal result: each is measured once.
    todo = {_digest(p.settings): p for p in points if journal.find(p.settings) is None}
    done = sum(journal.find(point.settings) is not None for point in points)
    estimate = Estimate(point.kind for point in todo.values())
    with told_when_interrupted(lambda: points_are_kept(journal.path)), sweep_bar(estimate) as bar:
        if done:
            bar.console.print(f"{done} of {len(points)} points are there already: {journal.path}")
        task = bar.add_task(title, total=len(todo))
        for point in todo.values():
            bar.update(task, description=f"{title}: {point.label}")
            estimate.begin(point.kind)
            result = journal.add(point.settings, point.measure())
            estimate.end()
            if metric.name in result:
                told = metric.spell(result[metric.name])
                bar.console.print(f"{point.label}: {told}", highlight=False)
            bar.advance(task)
        bar.update(task, description=title)
    return [journal.get(point.settings) for point in points]


def identity_of(subject: Subject) -> dict[str, str]:
    """What tells this model, these rows and their metric from any other."""
    metric = subject.task.metric.name
    judged = {} if metric == "accuracy" else {"task": subject.task.name, "metric": metric}
    return {
        **judged,
        "model": subject.name,
        "dataset": subject.dataset,
        "weights": fingerprint_of_weights(subject.model),
        "train": fingerprint_of_rows(subject.train),
        "test": fingerprint_of_rows(subject.test),
    }


def _digest(settings: Mapping[str, Any]) -> str:
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
