"""Search: trials of a space until a total is reached, persistent, resumable, distributed."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

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
from chop.search.space import Config, SearchSpace
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

    Infeasible configurations are skipped, duplicates are measured once, across restarts and
    workers. A killed process loses at most the trials that it was running; `run` with the same
    total resumes. A study goes on only with the goals, the options, their values and the rules of
    the space that it was begun with.

    Args:
        space: search space.
        measure: objective function (config, report) -> numbers by name; must be deterministic.
        goals: objectives (`Goal`) and constraints (`Constraint`). One objective gives a best
            trial, several a Pareto front.
        sampler: name in `chop.search.registry.SAMPLERS`, or any Optuna sampler.
        pruner: "asha", "hyperband", "median", any Optuna pruner, or None (default); needs one
            objective.
        storage: None keeps `search.db` (SQLite) in `out`; `postgresql://...` serves workers on
            many machines; "memory" keeps nothing, for trials of milliseconds.
        out: folder of the storage; what a study writes is in a folder in it, of its name.
        name: of the study: several may share a storage. Default "search".
        seed: of all that is drawn; with one worker the same seed gives the same search, killed in
            between or not.
        save: (config, folder) writes the model that was just measured; None (default) keeps none.
        keep: number of best models that stay, in `out/NAME/best/KEY`. Default 1.
        problem: plain JSON that tells apart what is measured (fingerprints of weights and rows,
            settings): a study begun on another problem is not gone on with.
        catch: errors of the measure that fail a trial and let the search go on, as NaN for a goal
            does. Any other error stops it; the configuration is tried again by the next run.
        start: initial configurations, measured first in a new study.
        callbacks: called as Optuna does, with the study and the finished trial.

    Raises:
        ConfigError: settings that do not fit together.

    Example:
        >>> from chop.search import Choice, Goal, SearchSpace
        >>> space = SearchSpace((Choice("x", {"1": 1, "2": 2}), Choice("y", {"1": 1, "3": 3})))
        >>> measure = lambda config, report: {"product": int(config["x"]) * int(config["y"])}
        >>> search = Search(space, measure, Goal("product"), sampler="grid", storage="memory")
        >>> search.run(until=10, progress=False).best.config
        {'x': '2', 'y': '3'}
    """

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
        seed: int = 0,
        save: Save | None = None,
        keep: int = 1,
        problem: Mapping[str, Any] | None = None,
        catch: tuple[type[Exception], ...] = (),
        start: Sequence[Config] = (),
        callbacks: Sequence[Callable[[Study, FrozenTrial], None]] = (),
    ) -> None:
        self.space, self.measure = space, measure
        self.goals = (goals,) if isinstance(goals, Goal | Constraint) else tuple(goals)
        for goal in self.goals:
            if not isinstance(goal, Goal | Constraint):
                raise ConfigError(f"goals: expected Goal or Constraint, got {goal!r}.")
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
        self._engines: list[sa.Engine] = []  # several where threads have begun at once
        self._optuna_study: InMemoryStudy | None = None

    @property
    def is_shared(self) -> bool:
        """True when other processes can reach the storage."""
        return self.url != MEMORY

    @property
    def folder(self) -> Path | None:
        """Where this study writes."""
        return None if self.out is None else self.out / self.name

    @property
    def study(self) -> Study:
        """An Optuna study of the trials, for its plots and importances, as they stand."""
        with self.opened() as ledger:
            ledger.sync()
            optuna_study = self._make_optuna_study()
            optuna_study.follow(ledger.rows)
            return optuna_study.study

    def run(self, until: int, workers: int = 1, progress: bool = True, wait: bool = True) -> Result:
        """Measures until the study has `until` configurations, those of earlier runs included.

        Args:
            until: a total: called again with the same number, there is nothing left to do.
            workers: processes of this machine. One measures in this process.
            progress: shows the best so far, the time left, and what was not measured again.
            wait: for the trials that other workers have begun, to take up those that they lose.
        Returns: all trials, and the best.
        Raises:
            ConfigError: settings that do not fit together, or a study of another problem.
            UnavailableError: the storage is not there (any more).
        """
        if until < 1 or workers < 1:
            raise ConfigError(f"until and workers: expected at least 1, got {until}, {workers}.")
        if workers > 1 and not self.is_shared:
            raise ConfigError(f"{workers} workers need a storage that they share, not '{MEMORY}'.")
        was_open = self._ledger is not None
        with self.opened() as ledger, live_progress(self.result, until, progress) as show:
            if was_open:  # rules are functions, whose answers may have changed since
                self._check_rules(ledger)
            self._tidy()
            if workers == 1:
                self._runner(HeartbeatMonitor()).run(until, show, wait)
            else:
                self._run_workers(until, workers, show, wait)
            return self._tidy()

    def result(self) -> Result:
        """All trials as they stand, other workers' included."""
        with self.opened() as ledger:
            ledger.sync()
            if self.artifacts is not None:
                self.artifacts.remove_orphans()
            return Result(self.goals, ledger.records)

    def enqueue(self, config: Config) -> None:
        """Lets a configuration be measured before the sampler proposes others.

        Raises:
            ConfigError: it is none of the space's, or infeasible.
        """
        key = self._key(config)
        with self.opened() as ledger:
            ledger.queue(key, config)

    def _key(self, config: Config) -> str:
        reason = self.space.why_infeasible(config)
        if reason is not None:
            raise ConfigError(f"this configuration is infeasible: {reason}")
        return self.space.key(config)

    def note_job(
        self,
        name: str,
        settings: Mapping[str, Any],
        extensions: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Keeps in the study what a worker elsewhere needs to build this search."""
        job = {"name": name, "settings": dict(settings), "extensions": dict(extensions)}
        with self.opened() as ledger:
            ledger.note("job", job)

    def close(self) -> None:
        """Lets go of the storage; the next call opens it again."""
        if self.is_shared:
            self._ledger = self._optuna_study = None
            engines, self._engines = self._engines, []
            for engine in engines:
                engine.dispose()

    @contextlib.contextmanager
    def opened(self) -> Iterator[Ledger]:
        """Inside, the storage stays open, so that each call reads only what is new.

        The last user closes it: threads may run the same search, and begin and end at any time.
        """
        user = object()
        with storage_errors(self.url):
            try:
                self._users.add(user)
                yield self._open()
            except BaseException:
                self._optuna_study = None  # may hold half a trial
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
                "make the others constraints, or take 'nsga2' or 'tpe'."
            )
        if len(objectives) > 1 and pruner is not None:
            raise ConfigError("a pruner compares one objective; make the others constraints.")

    def _artifacts(self, save: Save | None, keep: int) -> Artifacts | None:
        if save is None or keep == 0:
            return None
        if self.folder is None:
            raise ConfigError("save: expected `out`, the folder that the best models go to.")
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
        """Removes models that are not among the best, and what killed workers half wrote."""
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
                # What was read stays; connections would be shared by two processes.
                run_workers(work, count, before_fork=self._open().engine.dispose, on_poll=show)
            except ChopError as error:
                often = [row for row in lost() if row.begun >= DEFER_AFTER]
                notes = [f"trial {row.number} was begun {row.begun} times" for row in often]
                raise type(error)("; ".join([str(error), *notes])) from None
            count = min(workers, len(lost())) if wait else 0
            while wait and not count and self._open().unfinished(RUNNING):
                show()
                time.sleep(WAIT_SECONDS)
                count = min(workers, len(lost()))
        self._open().remove_worker(me)

    def _begin(self, ledger: Ledger) -> None:
        """Begins the study; one that was begun goes on only as the same problem."""
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
                    f"{self._begun_with} other {different}; give another name or out folder."
                )
        ledger.sync()
        self._check_rules(ledger)
        for key, config in document["start"].items():
            ledger.queue(key, config)

    @property
    def _begun_with(self) -> str:
        return f"study '{self.name}' in this storage was begun with"

    @cached_property
    def _values(self) -> dict[str, str]:
        """Identities of the values behind the options' texts, by choice."""
        known: dict[int, str] = {}
        return {
            choice.name: get_identity(
                [known.setdefault(id(x), get_identity(x)) for x in choice.options.values()]
            )
            for choice in self.space.choices
        }

    def _check_rules(self, ledger: Ledger) -> None:
        """Raises ConfigError where the space's rules are not those by which trials were made."""
        for row in ledger.rows:
            what = self._other_rule(row)
            if what is not None:
                raise ConfigError(
                    f"{self._begun_with} another {what}; give another name or out folder."
                )

    def _other_rule(self, row: Row) -> str | None:
        """The rule that says another thing of a trial than when it was made."""
        config = row.record.config
        reason = self.space.why_infeasible(config)
        was_infeasible = row.outcome == "infeasible"
        if was_infeasible != (reason is not None):
            said = f"is infeasible now: {reason}" if reason else "was infeasible, and is not now"
            return f"rule 'infeasible': trial {row.number} {said}"
        if row.key not in (None, self.space.key(config)):
            return f"rule 'canonical' or 'active': trial {row.number} has another meaning now"
        return None


def _plain(problem: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return dict(json.loads(json.dumps(problem, default=str)))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"problem: expected a JSON value: {error}.") from error


def _difference(part: str, old: Any, new: Any) -> str:
    """A part of a study's document that is another now, and in what."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        if names and part == "values":
            return f"values behind the same option texts of choice '{names[0]}'"
        if names:
            return f"{part}: '{names[0]}' was {old.get(names[0])}, now {new.get(names[0])}"
    return f"{part}: {old}, now {new}"
