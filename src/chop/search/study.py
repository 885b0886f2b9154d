"""Persistent, resumable, distributed search over a space."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from chop.config import Range, with_checked_arguments
from chop.errors import ChopError, ConfigError
from chop.search.artifacts import Artifacts, Save
from chop.search.identity import get_identity
from chop.search.ledger import RUNNING, Ledger, Row, make_tables
from chop.search.location import MEMORY, check_study_name, storage_url
from chop.search.objective import Constraint, Goal, Goals, Measure, goals_to_json, select_objectives
from chop.search.optuna_study import InMemoryStudy
from chop.search.progress import live_progress
from chop.search.registry import make_pruner, sampler_row
from chop.search.result import Result
from chop.search.runner import DEFER_AFTER, WAIT_SECONDS, Runner
from chop.search.space import Config, SearchSpace, check_takes
from chop.search.storage import open_engine, storage_errors
from chop.search.workers import HeartbeatMonitor, new_worker, run_workers

if TYPE_CHECKING:
    import sqlalchemy as sa
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

BEST_FOLDER = "best"


class Search:
    """Hyperparameter search with persistent trials, resumable and distributed.

    Infeasible configurations are skipped. Duplicates are measured once across restarts and workers.
    A killed process loses only its running trials, and `run` with the same total resumes. A study
    resumes only with the goals, options, option values and rules that it was started with.

    Args:
        space: search space.
        measure: objective function (config, report) -> numbers by name. It must be deterministic.
        goals: objectives (`Goal`) and constraints (`Constraint`). One objective gives a best
            trial, several a Pareto front.
        sampler: name in `chop.search.registry.SAMPLERS`, or any Optuna sampler.
        pruner: "asha", "hyperband", "median", any Optuna pruner, or None (default). Requires a
            single objective.
        storage: None stores trials in `search.db` (SQLite) in `out`. `postgresql://...` serves
            workers on many machines. "memory" stores nothing, for trials of milliseconds.
        out: output folder. Each study writes into a subfolder of its name.
        name: name of the study. Several studies may share a storage. Default "search".
        seed: seed of all draws. With one worker, the same seed gives the same search, even after
            kills.
        save: (config, folder) saves the model just measured. None (default) saves none.
        keep: number of best models to store, in `out/NAME/best/KEY`. Default 1; 0 for none.
        problem: JSON value that identifies the measured problem (fingerprints of weights and rows,
            settings). A study of another problem is not resumed.
        catch: exceptions of the objective that fail only the trial, like NaN for a goal. Any other
            exception stops the search, and the next run retries the configuration.
        start: initial configurations, measured first in a new study.
        callbacks: called with the study and the finished trial, as in Optuna.

    Raises:
        ConfigError: if settings are incompatible.

    Example:
        >>> from chop.search import Choice, Goal, SearchSpace
        >>> space = SearchSpace((Choice("x", {"1": 1, "2": 2}), Choice("y", {"1": 1, "3": 3})))
        >>> measure = lambda config, report: {"product": int(config["x"]) * int(config["y"])}
        >>> search = Search(space, measure, Goal("product"), sampler="grid", storage="memory")
        >>> search.run(until=10, progress=False).best.config
        {'x': '2', 'y': '3'}
    """

    @with_checked_arguments
    def __init__(
        self,
        space: SearchSpace,
        measure: Measure,
        goals: Goal | Constraint | Goals,
        *,
        sampler: str | BaseSampler = "sensitivity",
        pruner: str | BasePruner | None = None,
        storage: str | None = None,
        out: str | Path | None = None,
        name: str = "search",
        seed: Annotated[int, Range(0)] = 0,
        save: Save | None = None,
        keep: Annotated[int, Range(0)] = 1,
        problem: Mapping[str, Any] | None = None,
        catch: tuple[type[Exception], ...] = (),
        start: Sequence[Config] = (),
        callbacks: Sequence[Callable[[Study, FrozenTrial], None]] = (),
    ) -> None:
        check_takes(measure, 2, "measure: expected a function of a configuration and a reporter")
        for each in callbacks:
            check_takes(each, 2, "callbacks: expected functions of a study and a trial")
        self.space, self.measure = space, measure
        self.goals = (goals,) if isinstance(goals, Goal | Constraint) else tuple(goals)
        self.sampler, self.pruner, self.seed = sampler, make_pruner(pruner), seed
        self.out = None if out is None else Path(out).expanduser().absolute()
        self.url = storage_url(storage, self.out)
        self.name, self.problem = check_study_name(name), _plain(problem or {})
        self.catch, self.callbacks = catch, tuple(callbacks)
        self.start = {self._key(config): dict(config) for config in start}
        self.artifacts = self._artifacts(save, keep)
        self._check(pruner)
        self._ledger: Ledger | None = None
        self._users: set[object] = set()
        self._engines: list[sa.Engine] = []  # several if threads started at the same time
        self._optuna_study: InMemoryStudy | None = None

    @property
    def is_shared(self) -> bool:
        """True if other processes can access the storage."""
        return self.url != MEMORY

    @property
    def folder(self) -> Path | None:
        """Output folder of this study."""
        return None if self.out is None else self.out / self.name

    @property
    def study(self) -> Study:
        """Optuna study with the current trials, for Optuna's plots and importances."""
        with self.opened() as ledger:
            ledger.sync()
            optuna_study = self._make_optuna_study()
            optuna_study.follow(ledger.rows)
            return optuna_study.study

    @with_checked_arguments
    def run(self, until: int, workers: int = 1, progress: bool = True, wait: bool = True) -> Result:
        """Runs trials until the study has `until` configurations, including those of earlier runs.

        Args:
            until: total number of configurations. A repeated call with the same number runs
                nothing.
            workers: number of processes on this machine. 1 uses this process.
            progress: shows the best value so far, the time remaining and skipped trials.
            wait: waits for the trials of other workers, and recovers those that they lose.
        Returns: the result with all trials.
        Raises:
            ConfigError: if settings are incompatible, or the study is of another problem.
            UnavailableError: if the storage does not exist or was removed.
        """
        if until < 1 or workers < 1:
            raise ConfigError(f"until and workers: expected at least 1, got {until}, {workers}.")
        if workers > 1 and not self.is_shared:
            raise ConfigError(f"{workers} workers need a storage that they share, not '{MEMORY}'.")
        was_open = self._ledger is not None
        with self.opened() as ledger, live_progress(self.result, until, progress) as show:
            if was_open:  # rules are functions, and their results may have changed
                self._check_rules(ledger)
            self._tidy()
            if workers == 1:
                self._runner(HeartbeatMonitor()).run(until, show, wait)
            else:
                self._run_workers(until, workers, show, wait)
            return self._tidy()

    def result(self) -> Result:
        """Current trials, including those of other workers."""
        with self.opened() as ledger:
            ledger.sync()
            if self.artifacts is not None:
                self.artifacts.remove_orphans()
            return Result(self.goals, ledger.records)

    def enqueue(self, config: Config) -> None:
        """Queues a configuration to be measured before further proposals.

        Raises:
            ConfigError: if the configuration is invalid or infeasible.
        """
        key = self._key(config)
        with self.opened() as ledger:
            ledger.queue(key, config)

    def _key(self, config: Config) -> str:
        reason = self.space.why_infeasible(config)
        if reason is not None:
            raise ConfigError(f"this configuration is infeasible: {reason}")
        return self.space.key(config)

    def store_job(
        self,
        name: str,
        settings: Mapping[str, Any],
        extensions: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Stores in the study the settings from which workers elsewhere build this search."""
        job = {"name": name, "settings": dict(settings), "extensions": dict(extensions)}
        with self.opened() as ledger:
            ledger.set_entry("job", job)

    def close(self) -> None:
        """Closes the storage; the next call opens it again."""
        # A storage in memory would lose its trials.
        if self.is_shared:
            self._ledger = self._optuna_study = None
            engines, self._engines = self._engines, []
            for engine in engines:
                engine.dispose()

    @contextlib.contextmanager
    def opened(self) -> Iterator[Ledger]:
        """Context manager that leaves the storage open, so that each call reads only new rows.

        The last user closes it, because threads may run the same search and begin and end at any
        time.
        """
        user = object()
        with storage_errors(self.url):
            try:
                self._users.add(user)
                yield self._open()
            except BaseException:
                self._optuna_study = None  # may contain an incomplete trial
                raise
            finally:
                self._users.discard(user)
                if not self._users:
                    self.close()

    def _check(self, pruner: object) -> None:
        objectives, row = select_objectives(self.goals), sampler_row(self.sampler)
        if len(objectives) > row.max_goals:
            raise ConfigError(
                f"sampler '{self.sampler}' takes {row.max_goals} objective, got {len(objectives)}: "
                "turn the others into constraints, or use 'nsga2' or 'tpe'."
            )
        if len(objectives) > 1 and pruner is not None:
            raise ConfigError(
                "a pruner needs a single objective; turn the others into constraints."
            )

    def _artifacts(self, save: Save | None, keep: int) -> Artifacts | None:
        if save is None or keep == 0:
            return None
        if self.folder is None:
            raise ConfigError("save: expected `out`, the folder for the best models.")
        check_takes(save, 2, "save: expected a function of a configuration and a folder")
        return Artifacts(self.folder / BEST_FOLDER, keep, save)

    def _open(self) -> Ledger:
        if self._ledger is None:
            ledger = Ledger(open_engine(self.url), self.name)
            self._engines.append(ledger.engine)
            with storage_errors(self.url, begun=False):
                make_tables(ledger.engine)
                self._begin(ledger)
            self._ledger = ledger
            return ledger
        return self._ledger

    def _make_optuna_study(self) -> InMemoryStudy:
        if self._optuna_study is None:
            encoding = sampler_row(self.sampler).encoding
            self._optuna_study = InMemoryStudy(
                self.name, self.space, self.goals, encoding, self.pruner
            )
        return self._optuna_study

    def _tidy(self) -> Result:
        """Removes models that do not rank among the best, and incomplete ones."""
        # Listed before the trials are read: a folder that appears later belongs to a running trial.
        incomplete = [] if self.artifacts is None else self.artifacts.incomplete()
        result = self.result()
        if self.artifacts is not None:
            monitor, running = HeartbeatMonitor(), self._open().unfinished(RUNNING)
            keys = {row.key for row in running if not monitor.is_dead(row.worker)}
            self.artifacts.tidy(result, keys, incomplete)
        return result

    def _runner(self, monitor: HeartbeatMonitor) -> Runner:
        return Runner(self, self._open(), self._make_optuna_study(), monitor)

    def _run_workers(self, until: int, workers: int, show: Callable[[], None], wait: bool) -> None:
        monitor, me = HeartbeatMonitor(), new_worker()

        def work() -> None:
            with self.opened():
                self._runner(monitor).run(until, lambda: None, wait=False)

        def lost() -> list[Row]:
            ledger = self._open()
            ledger.sync()
            if monitor.is_due():
                monitor.poll(ledger, me)
            return monitor.orphaned(ledger)

        count = workers
        while count:
            try:
                # Rows stay in memory, but processes must not share connections.
                run_workers(work, count, before_fork=self._open().engine.dispose, on_poll=show)
            except ChopError as error:
                often = [row for row in lost() if row.begun >= DEFER_AFTER]
                notes = [f"trial {row.number} was started {row.begun} times" for row in often]
                raise type(error)("; ".join([str(error), *notes])) from None
            count = min(workers, len(lost())) if wait else 0
            while wait and not count and self._open().unfinished(RUNNING):
                show()
                time.sleep(WAIT_SECONDS)
                count = min(workers, len(lost()))
        self._open().remove_worker(me)

    def _begin(self, ledger: Ledger) -> None:
        """Creates the study, or checks that an existing one is of the same problem."""
        mine = {
            "choices": {choice.name: list(choice.texts) for choice in self.space.choices},
            "values": self._values,
            "goals": goals_to_json(self.goals),
            "options as": sampler_row(self.sampler).encoding,
            "problem": self.problem,
        }
        document = ledger.begin({"search": mine, "start": self.start})
        begun = {"values": self._values, **document["search"]}  # older studies have none
        for part, value in mine.items():
            if begun.get(part) != value:
                different = _difference(part, begun.get(part), value)
                raise ConfigError(
                    f"{self._begun_with} other {different}; choose another name or out folder."
                )
        ledger.sync()
        self._check_rules(ledger)
        for key, config in document["start"].items():
            ledger.queue(key, config)

    @property
    def _begun_with(self) -> str:
        return f"study '{self.name}' in this storage was started with"

    @cached_property
    def _values(self) -> dict[str, str]:
        """Returns identities of the option values by choice."""
        known: dict[int, str] = {}
        return {
            choice.name: get_identity(
                [known.setdefault(id(x), get_identity(x)) for x in choice.options.values()]
            )
            for choice in self.space.choices
        }

    def _check_rules(self, ledger: Ledger) -> None:
        """Raises ConfigError if the rules of the space differ from those of earlier trials."""
        for row in ledger.rows:
            what = self._other_rule(row)
            if what is not None:
                raise ConfigError(
                    f"{self._begun_with} another {what}; choose another name or out folder."
                )

    def _other_rule(self, row: Row) -> str | None:
        """Returns the rule whose result for a trial has changed, or None."""
        config = row.record.config
        reason = self.space.why_infeasible(config)
        was_infeasible = row.outcome == "infeasible"
        if was_infeasible != (reason is not None):
            change = f"is infeasible now: {reason}" if reason else "was infeasible, and is not now"
            return f"rule 'infeasible': trial {row.number} {change}"
        if row.key not in (None, self.space.key(config)):
            return f"rule 'canonical' or 'active': trial {row.number} now has another meaning"
        return None


def _plain(problem: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return dict(json.loads(json.dumps(problem, default=str)))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"problem: expected a JSON value: {error}.") from error


def _difference(part: str, old: Any, new: Any) -> str:
    """Returns the changed part of a study's document, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        if names and part == "values":
            return f"values behind the same option texts of choice '{names[0]}'"
        if names:
            return f"{part}: '{names[0]}' was {old.get(names[0])}, now {new.get(names[0])}"
    if part == "goals":
        old, new = (", ".join(_describe_goal(*goal) for goal in goals) for goals in (old, new))
    return f"{part}: {old}, now {new}"


def _describe_goal(name: str, direction: str, bound: float | None) -> str:
    return f"{direction} {name}" + ("" if bound is None else f" (bound {bound:g})")
