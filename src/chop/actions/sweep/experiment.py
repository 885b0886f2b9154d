"""Sweep experiments: change a trained model, evaluate it, fine-tune it, evaluate it again."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from chop.actions.sweep.points import Point, get_identity, measure_all
from chop.ir.graph import MaseGraph
from chop.runs import Journal
from chop.workloads.workload import Training, Workload, raise_to_graph

S = TypeVar("S")
JOURNAL = "points.jsonl"
"""File of the finished points in a sweep's output folder."""
FLOAT, START = "float", "start"
"""Stages of the float model, and of another graph that a sweep starts from."""

BACKWARD = 3
"""Time of training on a row, relative to evaluating it."""
Results = dict[str, float]
"""Measured values of a graph: the metric, `low` and `high` (bounds of its 95 % interval),
`seconds`, and the values from `Experiment.describe`.
"""


@dataclass(frozen=True)
class Start:
    """Graph that a sweep starts from instead of the float model's.

    Attributes:
        graph: creates the graph on first use.
        settings: everything that determines it, except the float model and the rows.
    """

    graph: Callable[[], MaseGraph]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """Change of a model with one setting at a time.

    Attributes:
        stages: names of the model after the change, and after further training.
        change: function from graph, setting and seed to a new graph.
        draws: function from setting to True if the change depends on the seed.
        describe: function from graph to values to store with its metric.
        described: function from setting to the names of these values.
        get_settings: function from setting and seed to everything that determines the change,
            except model and rows.
        label: function from setting to a word for the progress bar.
        training: arguments of `chop.train.fit` without the seed; without epochs there is no second
            stage.
        seeds: seeds of the change and of training; each gives a result.
        start: graph to change. Default: the float model's.
    """

    stages: tuple[str, str]
    change: Callable[[MaseGraph, S, int], MaseGraph]
    draws: Callable[[S], bool]
    describe: Callable[[MaseGraph], Mapping[str, float]]
    described: Callable[[S], tuple[str, ...]]
    get_settings: Callable[[S, int], Mapping[str, Any]]
    label: Callable[[S], str]
    training: Training
    seeds: tuple[int, ...]
    start: Start | None = None


class Sweep(Generic[S]):
    """Experiment on a workload.

    Args:
        experiment: the change and its settings.
        workload: the model and its rows.
    """

    def __init__(self, experiment: Experiment[S], workload: Workload) -> None:
        self.experiment, self.workload = experiment, workload

    def measure(
        self, settings: Sequence[S], out: Path
    ) -> dict[tuple[str, S | None], list[Results]]:
        """Returns the results by stage and setting, one per seed that makes a difference.

        The key of the float model is `(FLOAT, None)`, that of another start `(START, None)`. Each
        result is stored in `out` at once; stored results are not measured again.
        """
        # Points that are in the journal were trained like new ones: reports name the teacher.
        self.workload.get_arguments(self.experiment.training)
        keyed = list(self._points(settings))
        points, journal = [point for _, point in keyed], Journal(out / JOURNAL)
        workload = self.workload
        if any(point.find(journal) is None for point in points):
            _ = self.float_graph  # capture it before the first point is timed
        results = measure_all(workload.title, points, journal, workload.task.metric, self._costs())
        by_setting: dict[tuple[str, S | None], list[Results]] = {}
        for (key, _), result in zip(keyed, results, strict=True):
            by_setting.setdefault(key, []).append(result)
        return by_setting

    def _costs(self) -> dict[str, float]:
        """Returns the relative cost of a point of each stage; training includes backward passes."""
        trained = BACKWARD * self.experiment.training["epochs"] * len(self.workload.train)
        judging = (self.workload.test, self.workload.validation)
        evaluated = sum(len(rows) for rows in judging if rows is not None)
        return {self.experiment.stages[1]: 1 + trained / max(1, evaluated)}

    @functools.cached_property
    def float_graph(self) -> MaseGraph:
        """Graph of the workload's model."""
        return raise_to_graph(self.workload)

    @functools.cached_property
    def start_graph(self) -> MaseGraph:
        """Graph that the experiment changes."""
        start = self.experiment.start
        return self.float_graph if start is None else start.graph()

    def settings_at(self, stage: str, setting: S, seed: int) -> dict[str, Any]:
        """Returns the journal key of a point: everything that determines its result."""
        about = {**self._identity, **self._origin, **self._get_settings(setting, seed)}
        if stage == self.experiment.stages[0]:
            return about
        return {**about, "training": self._training(seed)}

    def graph_at(self, stage: str, setting: S, seed: int) -> MaseGraph:
        """Returns a new graph of a stage."""
        drawn = self._drawn(setting, seed)
        changed = self.experiment.change(self.start_graph, setting, drawn)
        return changed if stage == self.experiment.stages[0] else self._trained(changed, seed)

    @functools.cached_property
    def _identity(self) -> dict[str, str]:
        return get_identity(self.workload)

    @property
    def _origin(self) -> dict[str, Any]:
        start = self.experiment.start
        return {} if start is None else {START: start.settings}

    def _get_settings(self, setting: S, seed: int) -> Mapping[str, Any]:
        return self.experiment.get_settings(setting, self._drawn(setting, seed))

    def _drawn(self, setting: S, seed: int) -> int:
        """Returns the seed of a change; the first one if the change is not random."""
        return seed if self.experiment.draws(setting) else self.experiment.seeds[0]

    def _training(self, seed: int) -> Training:
        return {**self.experiment.training, "seed": seed}

    def _trained(self, mg: MaseGraph, seed: int) -> MaseGraph:
        graph = mg.copy()
        self.workload.fit(graph.model, self._training(seed))
        return graph

    def _measured(self, make: Callable[[], MaseGraph]) -> Results:
        began, workload = time.monotonic(), self.workload
        mg = make()
        score = workload.score(mg.model, workload.test)
        result = {workload.task.metric.name: score.value}
        result |= dict(zip(("low", "high"), score.interval or (), strict=False))
        result |= self.experiment.describe(mg)
        return {**result, "seconds": time.monotonic() - began}

    def _points(self, settings: Sequence[S]) -> Iterator[tuple[tuple[str, S | None], Point]]:
        """Yields points in an order in which consecutive points share a graph."""

        @functools.lru_cache(maxsize=1)
        def changed(setting: S, drawn: int) -> MaseGraph:
            return self.experiment.change(self.start_graph, setting, drawn)

        metric = self.workload.task.metric.name
        names: tuple[str, ...] = (metric,)

        def point(label: str, kind: str, about: Any, make: Callable[[], MaseGraph]) -> Point:
            return Point(label, about, functools.partial(self._measured, make), kind, names)

        yield (FLOAT, None), point(FLOAT, FLOAT, self._identity, lambda: self.float_graph)
        if self._origin:
            about = {**self._identity, **self._origin}
            yield (START, None), point(START, START, about, lambda: self.start_graph)
        before, after = self.experiment.stages
        for setting in settings:
            names = (metric, *self.experiment.described(setting))
            for seed in self.experiment.seeds:
                drawn, label = self._drawn(setting, seed), self._label(setting, seed)
                make = functools.partial(changed, setting, drawn)
                if drawn == seed:
                    about = self.settings_at(before, setting, seed)
                    yield (before, setting), point(f"{label} {before}", before, about, make)
                if self.experiment.training["epochs"]:
                    about = self.settings_at(after, setting, seed)
                    trained = functools.partial(self._trained_from, make, seed)
                    yield (after, setting), point(f"{label} {after}", after, about, trained)

    def _trained_from(self, make: Callable[[], MaseGraph], seed: int) -> MaseGraph:
        return self._trained(make(), seed)

    def _label(self, setting: S, seed: int) -> str:
        label = self.experiment.label(setting)
        return label if len(self.experiment.seeds) == 1 else f"{label} seed {seed}"
