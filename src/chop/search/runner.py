"""Worker loop of a search: recover lost trials, propose, claim, measure, report."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

from chop.config import Range, convert
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
"""Maximum number of known proposals in a row before an unvisited neighbor is taken."""
DEFER_AFTER = 3
"""Number of starts from which a trial is retried last, because it may kill its workers."""
MAX_ERRORS = 3
"""Number of uncaught errors of the objective after which a trial counts as failed."""
WAIT_SECONDS = 0.2


log = logging.getLogger(__name__)


class Task(Protocol):
    """Part of a `Search` that a worker uses; see there for the attributes."""

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
        """True if other processes can access the storage."""


class _Outcome(NamedTuple):
    """Outcome of a trial in the study and in Optuna.

    Attributes:
        name: outcome in the trial's row, such as "measured" or "failed".
        state: trial state in Optuna.
        values: measured values by name. None without a measurement.
        note: reason of the outcome.
    """

    name: str
    state: str
    values: Mapping[str, float] | None = None
    note: str = ""


class _LostError(ChopError):
    """Raised when another worker has taken over this trial because heartbeats were missed."""


class Runner:
    """Worker that runs trials of a study in this process.

    Args:
        search: space, objective and settings of the search.
        ledger: ledger of the study.
        optuna_study: in-memory Optuna study of the same search.
        monitor: detects dead workers.
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
        """Runs trials until `until` configurations are started, or none is available.

        Args:
            until: target number of configurations in the study.
            after_trial: called after each trial.
            wait: waits for the trials of other workers, and recovers those that they lose.
        """
        with heartbeat(self.ledger, self.me, self.monitor, is_shared=self.search.is_shared):
            while self.run_trial(until) or (wait and self._await_others()):
                after_trial()

    def run_trial(self, until: int) -> bool:
        """Runs one trial; returns False if there is nothing to do."""
        self._sync()
        # Trials of dead workers come before queued ones, and both before new proposals.
        has_room = len(self.ledger.by_key) < until and not self.exhausted
        row = self._claim_existing(until, has_room)
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
        """Sleeps while other workers run trials; returns False if there are none."""
        if not self.ledger.unfinished(RUNNING):
            return False
        time.sleep(WAIT_SECONDS)
        return True

    def _claim_existing(self, until: int, has_room: bool) -> Row | None:
        """Claims a lost or queued trial for this worker, or returns None."""
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
        """Claims and measures the sampler's proposal, or repeats the outcome of a known one."""
        space = self.search.space
        if len(self.ledger.rows) != self._rows:
            # Proposals are numbered from the last row on, so that no worker skips a number.
            self.busy, self._rows = 0, len(self.ledger.rows)
        near = self._propose_neighbor() if self._count_known_proposals() >= MAX_REPEATS else None
        if self.exhausted:
            return
        # After several known proposals, an unvisited neighbor replaces the sampler's choice.
        trial = self._ask(len(self.ledger.rows) + self.busy, near)
        config = space.from_params(trial.params)
        reason = space.why_infeasible(config)
        if reason is not None:
            if self._is_next(trial):
                self._add(trial, config, _Outcome("infeasible", "PRUNED", note=reason))
            return
        document = {"config": dict(config), "asked": self.optuna_study.frozen(trial).system_attrs}
        # The claim decides: only one of several workers with this proposal gets to measure it.
        row = self.ledger.claim(space.key(config), document, self.me, until)
        if row is not None and row.outcome == WAITING:
            row = self.ledger.claim_row(row, self.me, until)
        if row is not None and row.is_finished:
            if self._is_next(trial):
                self._repeat(row, trial, config)
        elif row is not None and row.worker == self.me:
            self._run(row, trial)
        else:
            # Another worker measures it now. The next proposal draws with another seed.
            self.busy += 1
            self.optuna_study.drop(trial)

    def _is_next(self, trial: Trial) -> bool:
        """Returns whether no other worker has added a row since the proposal."""
        if self.search.is_shared:
            self.ledger.sync()
        if len(self.ledger.rows) == self._rows:
            return True
        self.optuna_study.drop(trial)
        return False

    def _ask(self, place: int, given: Config | None) -> Trial:
        """Returns a new trial of the in-memory study.

        Its random draws depend only on its index among the rows, which a kill does not change. A
        killed search therefore continues as if uninterrupted.
        """
        seed = derive_seed(self.search.seed, ["trial", place])
        is_constrained = self.sampler.constraint_settings and select_constraints(self.search.goals)
        settings = constraint_settings() if is_constrained else {}
        self.optuna_study.study.sampler = self.sampler.make(self.search.space, seed, **settings)
        return self.optuna_study.ask(given)

    def _count_known_proposals(self) -> int:
        """Returns the number of latest proposals that required no measurement."""
        known = itertools.takewhile(lambda row: row.key is None, reversed(self.ledger.rows))
        return self.busy + sum(1 for _ in known)

    def _propose_neighbor(self) -> Config | None:
        """Returns an unclaimed configuration near the last one, or None."""
        last = self.ledger.rows[-1].record.config
        neighbor = unvisited_neighbor(self.search.space, last, self.ledger.by_key, self.search.seed)
        self.exhausted = neighbor is None
        return neighbor

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
            with contextlib.suppress(Exception):  # a missing storage raises its own error
                self.ledger.release(row, self.me, errors=0)
            raise

    def _measure(self, row: Row, trial: Trial) -> None:
        from optuna import TrialPruned

        begin = time.monotonic()
        try:
            # A copy, so that the measure cannot change the recorded configuration.
            config = dict(row.record.config)
            measured = self.search.measure(config, self._reporter(row, trial))
            outcome = _Outcome("measured", "COMPLETE", check_values(measured, self.search.goals))
        except (Pruned, TrialPruned) as pruned:
            outcome = _Outcome("pruned", "PRUNED", note=str(pruned))
        except self._caught as error:
            outcome = _failed(error)
            chosen = ", ".join(f"{name}={text}" for name, text in row.record.config.items())
            log.warning("trial %d failed: %s (%s)", row.number, outcome.note.rstrip("."), chosen)
        except Exception as error:
            # A bug should stop the search, but a configuration that always fails must not block it.
            if row.errors + 1 >= MAX_ERRORS:
                self._end(row, trial, _failed(error), time.monotonic() - begin)
            else:
                self.ledger.release(row, self.me, errors=1)
            values = self.search.space.values(row.record.config)
            if isinstance(error, TypeError | ValueError | KeyError) and values != config:
                error.add_note(
                    f"The measure was called with the configuration {config}, whose options are "
                    "texts. space.values(config) returns their values."
                )
            raise
        self._end(row, trial, outcome, time.monotonic() - begin)

    def _reporter(self, row: Row, trial: Trial) -> Report:
        """Returns the `report` callback of the objective, which prunes trials."""
        from optuna.pruners import NopPruner

        is_single = len(select_objectives(self.search.goals)) == 1
        is_pruned = not isinstance(self.search.pruner, NopPruner)

        def report(step: int, value: float) -> None:
            step = convert(step, Annotated[int, Range(0)], "report: step")
            value = convert(value, float, "report: value")
            if not is_single:  # pruners compare a single number
                return
            trial.report(value, step)
            if not is_pruned:
                return
            self._sync()
            # `should_prune` also stores rungs in the trial, which other workers compare with.
            is_behind = trial.should_prune()
            if self.search.is_shared:
                running = self.optuna_study.frozen(trial)
                asked = {"asked": row.parsed.get("asked", {})}
                document = build_document(running, row.record.config) | asked
                self.ledger.report(row, self.me, document)
            if is_behind:
                raise Pruned(f"behind at step {step}")

        return report

    def _end(self, row: Row, trial: Trial, outcome: _Outcome, seconds: float) -> None:
        """Finishes a trial once, after its model was saved if it ranks among the best."""
        artifacts = self.search.artifacts
        if artifacts is not None and outcome.values is not None:
            mine = replace(row.record, outcome="measured", values=outcome.values)
            try:
                artifacts.offer(mine, self.search.goals, self._result)
            except Exception:
                self.ledger.sync()
                if self.ledger.rows[row.number].worker == self.me:
                    raise
                raise _LostError(
                    "another worker has removed the incomplete model folder."
                ) from None
        frozen, document = self._finish_trial(trial, row.record.config, outcome)
        document["seconds"] = seconds
        if not self.ledger.finish(row, self.me, outcome.name, document):
            raise _LostError("another worker has taken over the trial.")
        if artifacts is not None and outcome.values is not None:
            artifacts.clean(self._result)
        self._call_back(frozen)

    def _repeat(self, row: Row, trial: Trial, config: Config) -> None:
        """Adds a cached trial with the outcome of an earlier trial of the same configuration."""
        document = row.parsed
        for step, value in document.get("steps", {}).items():
            trial.report(value, int(step))
        values, note = document.get("values"), f"as trial {row.number}"
        self._add(trial, config, _Outcome("cached", document["state"], values, note))

    def _add(self, trial: Trial, config: Config, outcome: _Outcome) -> None:
        """Adds a finished trial without a measurement, unless its number was taken meanwhile.

        The sampler learns of it after its number is reserved, so that it depends on rows only.
        """
        finished: list[FrozenTrial] = []

        def make_document() -> dict[str, Any]:
            frozen, document = self._finish_trial(trial, config, outcome)
            finished.append(frozen)
            return document

        number = self.ledger.add(outcome.name, {"config": dict(config)}, self._rows, make_document)
        if number is None:
            self.optuna_study.drop(trial)
            return
        self.optuna_study.adopt(number, trial)
        self._call_back(finished[0])

    def _finish_trial(
        self, trial: Trial, config: Config, outcome: _Outcome
    ) -> tuple[FrozenTrial, dict[str, Any]]:
        """Finishes a trial of the in-memory study; returns it and the document of its row."""
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
