"""What both sweeps do: change a trained model, measure it, train it further, measure it again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from chop.actions.sweep.points import Point, identity_of
from chop.actions.workload import Training, Workload, raise_to_graph
from chop.ir.graph import MaseGraph
from chop.train import evaluate, fit

S = TypeVar("S")


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

    def points(
        self, workload: Workload, settings: Sequence[S]
    ) -> dict[tuple[str, S | None], Point]:
        """The points by stage and setting, in the order in which one graph serves two of them.

        The float model is the point `("float", None)`.
        """

        @functools.cache
        def raised() -> MaseGraph:
            return raise_to_graph(workload)

        @functools.lru_cache(maxsize=1)
        def changed(setting: S) -> MaseGraph:
            return self.change(raised(), setting)

        def result_of(mg: MaseGraph) -> dict[str, float]:
            value = evaluate(mg.model, workload.test, device=workload.device, task=workload.task)
            return {workload.task.metric.name: value, **self.describe(mg)}

        def measured(setting: S) -> dict[str, float]:
            return result_of(changed(setting))

        def trained(setting: S) -> dict[str, float]:
            graph = changed(setting).copy()
            fit(
                graph.model,
                workload.train,
                **self.training,
                device=workload.device,
                task=workload.task,
            )
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
