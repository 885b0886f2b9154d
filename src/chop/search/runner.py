"""Worker loop of a search: take over lost trials, ask the sampler, claim, measure, tell."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from chop.errors import ChopError
from chop.search.artifacts import Artifacts
from chop.search.ledger import RUNNING, WAITING, Ledger, Row
from chop.search.neighbors import unvisited_neighbor
from chop.search.objective import (
    Constraint,
    Goal,
    Measure,
    NotANumberError,
    Pruned,
    Report,
    check_values,
    select_constraints,
    select_objectives,
)
from chop.search.optuna_study import InMemoryStudy, build_document, constraint_settings
from chop.search.registry import derive_seed, sampler_row
from chop.search.result import Result
from chop.search.space import Config, SearchSpace
from chop.search.workers import HeartbeatMonitor, heartbeat, new_worker

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

MAX_REPEATS = 5
"""Proposals in a row that were known before; then an unvisited neighbor is taken."""
DEFER_AFTER = 3
"""A trial begun as often is retried when nothing else is left: it may kill its workers."""
MOST_ERRORS = 3
"""A measure that so often ends by an error that is not to be caught has failed."""
WAIT_SECONDS = 0.2


log = logging.getLogger(__name__)


class Task(Protocol):
    """What a worker reads of a `Search`, whose docstring says what each is."""

    space: SearchSpace
    measure: Measure
    goals: tuple[Goal | Constraint, ...]
    sampler: str | BaseSampler
    pruner: BasePruner
    seed: int
    catch: tuple[type[Exception], ...]
    callbacks: tuple[Callable[[Study, FrozenTrial], None], ...]
    artifacts: Artifacts | None

    @property
    def is_shared(self) -> bool:
        """True when other processes can reach the storage."""


class _Outcome(NamedTuple):
    """Outcome of a trial.

    Attributes:
        name: outcome of the trial's row, as "measured" or "failed".
        state: Optuna's state of the trial.
        values: measured values by name; None if nothing was measured.
        note: reason of the outcome.
    """

    name: str
    state: str
    values: Mapping[str, float] | None = None
    note: str = ""


class _LostError(ChopError):
    """This worker was taken for gone: another has its trial."""


class Runner:
    """Runs trials of one study in this process.

    Args:
        search: what is tried, and how.
        ledger: of the study.
        optuna_study: of the same study.
        monitor: tells which workers are dead.
    """

    def __init__(
        self, search: Task, ledger: Ledger, optuna_study: InMemoryStudy, monitor: HeartbeatMonitor
    ) -> None:
        self.search, self.ledger, self.optuna_study = search, ledger, optuna_study
        self.me = new_worker()
        self.monitor = monitor
        self.sampler = sampler_row(search.sampler)
        self.busy = self._rows = 0
        self.exhausted = False
        self._caught: tuple[type[Exception], ...] = (NotANumberError, *search.catch)

    def run(self, until: int, after_trial: Callable[[], None], wait: bool) -> None:
        """Measures until so many configurations of the study are begun, or none is left.

        Args:
            until: how many.
            after_trial: called after each.
            wait: for the trials of other workers, to take up those that they lose.
        """
        with heartbeat(self.ledger, self.me, self.monitor, is_shared=self.search.is_shared):
            while self.run_trial(until) or (wait and self._await_others()):
                after_trial()

    def run_trial(self, until: int) -> bool:
        """Runs one trial, from proposal to end; returns False where nothing is left to do."""
        self._sync()
        has_room = len(self.ledger.by_key) < until and not self.exhausted
        row = self._taken(until, has_room)
        if row is not None:
            trial = self._ask(row.number, row.record.config)
            self.optuna_study.restore(trial, row)
            self._run(row, trial)
        elif has_room:
            self._propose(until)
        return row is not None or has_room

    def _sync(self) -> None:
        self.ledger.sync()
        self.optuna_study.follow(self.ledger.rows, self.monitor.is_dead)

    def _result(self) -> Result:
        return Result(self.search.goals, self.ledger.records)

    def _await_others(self) -> bool:
        """A pause while other workers measure; False when none does."""
        if not self.ledger.unfinished(RUNNING):
            return False
        time.sleep(WAIT_SECONDS)
        return True

    def _taken(self, until: int, has_room: bool) -> Row | None:
        """A lost or a queued trial, which is now this worker's."""
        lost = self.monitor.orphaned(self.ledger)
        prompt = [row for row in lost if row.begun < DEFER_AFTER]
        waiting = self.ledger.unfinished(WAITING)
        late = [] if has_room else [row for row in lost if row.begun >= DEFER_AFTER]
        for row in (*prompt, *waiting, *late):
            mine = self.ledger.claim_row(row, self.me, until)
            if mine is not None:
                return mine
        return None

    def _propose(self, until: int) -> None:
        """Claims and measures the sampler's proposal; repeats the outcome of a known one."""
        space = self.search.space
        if len(self.ledger.rows) != self._rows:
            # Places are counted from the rows on, so that no worker passes one over.
            self.busy, self._rows = 0, len(self.ledger.rows)
        near = self._unvisited() if self._known_in_a_row() >= MAX_REPEATS else None
        if self.exhausted:
            return
        trial = self._ask(len(self.ledger.rows) + self.busy, near)
        config = space.from_params(trial.params)
        reason = space.why_infeasible(config)
        if reason is not None:
            if self._is_next(trial):
                self._add(trial, config, _Outcome("infeasible", "PRUNED", note=reason))
            return
        document = {"config": dict(config), "asked": self.optuna_study.frozen(trial).system_attrs}
        row = self.ledger.claim(space.key(config), document, self.me, until)
        if row is not None and row.outcome == WAITING:
            row = self.ledger.claim_row(row, self.me, until)
        if row is not None and row.is_finished:
            if self._is_next(trial):
                self._repeat(row, trial, config)
        elif row is not None and row.worker == self.me:
            self._run(row, trial)
        else:
            self.busy += 1
            self.optuna_study.drop(trial)

    def _is_next(self, trial: Trial) -> bool:
        """False where another worker has added a row since; the place of the proposal is taken."""
        if self.search.is_shared:
            self.ledger.sync()
        if len(self.ledger.rows) == self._rows:
            return True
        self.optuna_study.drop(trial)
        return False

    def _ask(self, place: int, given: Config | None) -> Trial:
        """A trial of the study in memory. Its draws depend on its place among the rows alone, which
        a kill does not change: a search that was killed goes on as if unbroken."""
        seed = derive_seed(self.search.seed, ["trial", place])
        is_constrained = self.sampler.constraint_settings and select_constraints(self.search.goals)
        settings = constraint_settings() if is_constrained else {}
        self.optuna_study.study.sampler = self.sampler.make(self.search.space, seed, **settings)
        return self.optuna_study.ask(given)

    def _known_in_a_row(self) -> int:
        """How many of the last proposals left nothing to measure."""
        known = itertools.takewhile(lambda row: row.key is None, reversed(self.ledger.rows))
        return self.busy + sum(1 for _ in known)

    def _unvisited(self) -> Config | None:
        """A configuration that nobody has claimed, near the last one."""
        last = self.ledger.rows[-1].record.config
        found = unvisited_neighbor(self.search.space, last, self.ledger.by_key, self.search.seed)
        self.exhausted = found is None
        return found

    def _run(self, row: Row, trial: Trial) -> None:
        """Measures a configuration that this worker has claimed."""
        self.busy = 0
        self.optuna_study.adopt(row.number, trial)
        try:
            self._measure(row, trial)
        except _LostError:
            self.optuna_study.leave(row.number)
        except BaseException:
            self.optuna_study.leave(row.number)
            with contextlib.suppress(Exception):  # a storage that is gone has its own error
                self.ledger.release(row, self.me, errors=0)
            raise

    def _measure(self, row: Row, trial: Trial) -> None:
        begin = time.monotonic()
        try:
            measured = self.search.measure(row.record.config, self._reporter(row, trial))
            outcome = _Outcome("measured", "COMPLETE", check_values(measured, self.search.goals))
        except Pruned as pruned:
            outcome = _Outcome("pruned", "PRUNED", note=str(pruned))
        except self._caught as error:
            outcome = _failed(error)
            chosen = ", ".join(f"{name}={text}" for name, text in row.record.config.items())
            log.warning("trial %d failed: %s (%s)", row.number, outcome.note.rstrip("."), chosen)
        except Exception as error:
            if row.errors + 1 >= MOST_ERRORS:
                self._end(row, trial, _failed(error), time.monotonic() - begin)
            else:
                self.ledger.release(row, self.me, errors=1)
            raise
        self._end(row, trial, outcome, time.monotonic() - begin)

    def _reporter(self, row: Row, trial: Trial) -> Report:
        """What a measure reports to: the pruner, which compares it with other trials."""
        from optuna.pruners import NopPruner

        is_single = len(select_objectives(self.search.goals)) == 1
        is_pruned = not isinstance(self.search.pruner, NopPruner)

        def report(step: int, value: float) -> None:
            if not is_single:  # pruners compare one number
                return
            trial.report(value, step)
            if not is_pruned:
                return
            self._sync()
            is_behind = trial.should_prune()  # notes what other trials are compared with
            if self.search.is_shared:
                running = self.optuna_study.frozen(trial)
                asked = {"asked": row.noted.get("asked", {})}
                document = build_document(running, row.record.config) | asked
                self.ledger.report(row, self.me, document)
            if is_behind:
                raise Pruned(f"behind at step {step}")

        return report

    def _end(self, row: Row, trial: Trial, outcome: _Outcome, seconds: float) -> None:
        """Finishes a trial of this worker, once, after its model is saved if it is to be kept."""
        artifacts = self.search.artifacts
        if artifacts is not None and outcome.values is not None:
            mine = replace(row.record, outcome="measured", values=outcome.values)
            try:
                artifacts.offer(mine, self.search.goals, self._result)
            except Exception:
                self.ledger.sync()
                if self.ledger.rows[row.number].worker == self.me:
                    raise
                raise _LostError("another worker has removed what was half saved.") from None
        frozen, document = self._tell(trial, row.record.config, outcome)
        document["seconds"] = seconds
        if not self.ledger.finish(row, self.me, outcome.name, document):
            raise _LostError("another worker has taken the trial.")
        if artifacts is not None and outcome.values is not None:
            artifacts.clean(self._result)
        self._call_back(frozen)

    def _repeat(self, row: Row, trial: Trial, config: Config) -> None:
        """Adds a cached trial: the outcome of an earlier trial of the same configuration."""
        noted = row.noted
        for step, value in noted.get("steps", {}).items():
            trial.report(value, int(step))
        values, note = noted.get("values"), f"as trial {row.number}"
        self._add(trial, config, _Outcome("cached", noted["state"], values, note))

    def _add(self, trial: Trial, config: Config, outcome: _Outcome) -> None:
        """Adds a finished trial that measured nothing, unless its place was taken meanwhile.

        The sampler is told of it once it has its place, so that it learns from rows alone.
        """
        told: list[FrozenTrial] = []

        def tell() -> dict[str, Any]:
            frozen, document = self._tell(trial, config, outcome)
            told.append(frozen)
            return document

        number = self.ledger.add(outcome.name, {"config": dict(config)}, self._rows, tell)
        if number is None:
            self.optuna_study.drop(trial)
            return
        self.optuna_study.adopt(number, trial)
        self._call_back(told[0])

    def _tell(
        self, trial: Trial, config: Config, outcome: _Outcome
    ) -> tuple[FrozenTrial, dict[str, Any]]:
        """Finishes a trial of the study in memory; returns it, and the document of its row."""
        from optuna.trial import TrialState

        values = None
        trial.set_user_attr("outcome", outcome.name)
        trial.set_user_attr("note", outcome.note)
        if outcome.values is not None:
            trial.set_user_attr("values", dict(outcome.values))
            values = [outcome.values[goal.name] for goal in select_objectives(self.search.goals)]
            excess = {
                f"{constraint.name} {constraint.direction}": constraint.excess(
                    outcome.values[constraint.name]
                )
                for constraint in select_constraints(self.search.goals)
            }
            self.optuna_study.constrain(trial, excess)
        frozen = self.optuna_study.study.tell(trial, values, state=TrialState[outcome.state])
        return frozen, build_document(frozen, config)

    def _call_back(self, frozen: FrozenTrial) -> None:
        for callback in self.search.callbacks:
            callback(self.optuna_study.study, frozen)


def _failed(error: Exception) -> _Outcome:
    is_ours = isinstance(error, NotANumberError)
    return _Outcome(
        "failed", "FAIL", note=f"{'' if is_ours else f'{type(error).__name__}: '}{error}"
    )
