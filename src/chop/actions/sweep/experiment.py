"""What both sweeps do: change a trained model, measure it, train it further, measure it again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from chop.actions.sweep.points import Point, identity_of, measure_all
from chop.actions.workload import Training, Workload, raise_to_graph
from chop.ir.graph import MaseGraph
from chop.runs import Journal

S = TypeVar("S")
JOURNAL = "points.jsonl"
"""The file of the finished points in a sweep's output folder."""


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """A change of a model, one setting at a time.

    Attributes:
        stages: what the model is called after the change, and after further training.
        change: float graph, setting -> a new graph.
        describe: graph -> numbers to keep beside its metric.
        settings_of: setting -> all that the change depends on, model and rows aside.
        label: setting -> a word for the progress bar.
        training: arguments of `chop.train.fit`; no epochs, no second stage.
    """

    stages: tuple[str, str]
    change: Callable[[MaseGraph, S], MaseGraph]
    describe: Callable[[MaseGraph], Mapping[str, float]]
    settings_of: Callable[[S], Mapping[str, Any]]
    label: Callable[[S], str]
    training: Training

    def measure(
        self, workload: Workload, settings: Sequence[S], out: Path
    ) -> dict[tuple[str, S | None], dict[str, float]]:
        """The results by stage and setting; that of the float model is `("float", None)`.

        Each is noted in `out` the moment it is there; what is noted already is not measured.
        """
        points = self._points(workload, settings)
        title, journal = workload.title, Journal(out / JOURNAL)
        results = measure_all(title, list(points.values()), journal, workload.task.metric)
        return dict(zip(points, results, strict=True))

    def _points(
        self, workload: Workload, settings: Sequence[S]
    ) -> dict[tuple[str, S | None], Point]:
        """In the order in which one graph serves two of them."""

        @functools.cache
        def raised() -> MaseGraph:
            return raise_to_graph(workload)

        @functools.lru_cache(maxsize=1)
        def changed(setting: S) -> MaseGraph:
            return self.change(raised(), setting)

        def result_of(mg: MaseGraph) -> dict[str, float]:
            value = workload.evaluate(mg.model, workload.test)
            return {workload.task.metric.name: value, **self.describe(mg)}

        def measured(setting: S) -> dict[str, float]:
            return result_of(changed(setting))

        def trained(setting: S) -> dict[str, float]:
            graph = changed(setting).copy()
            workload.fit(graph.model, self.training)
            return result_of(graph)

        before, after = self.stages
        known = identity_of(workload)
        points: dict[tuple[str, S | None], Point] = {
            ("float", None): Point("float", known, lambda: result_of(raised()), "float")
        }
        for setting in settings:
            about, label = {**known, **self.settings_of(setting)}, self.label(setting)
            points[before, setting] = Point(
                f"{label} {before}", about, functools.partial(measured, setting), before
            )
            if self.training["epochs"]:
                about = {**about, "training": self.training}
                points[after, setting] = Point(
                    f"{label} {after}", about, functools.partial(trained, setting), after
                )
        return points
