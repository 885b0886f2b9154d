"""One worker's part of a search: propose, claim, measure, tell; and take up what others lost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chop.search.artefacts import Artefacts
from chop.search.choosers import Problem, sampler_row, seed_of
from chop.search.held import holding
from chop.search.measure import Goal, Measure, Pruned, check_values, objectives_of
from chop.search.result import config_of, outcome_of, read_result
from chop.search.space import Config, SearchSpace
from chop.search.storage import Ledger, begin_trial, leave_to_others
from chop.search.unseen import unseen_near
from chop.search.workers import BEAT_SECONDS, Worker, beating, is_lost

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, TrialState

PATIENCE = 5
"""Proposals in a row that were known before; then an unseen configuration is taken nearby."""
RESAMPLES = 2
"""Proposals in a row that another worker is measuring; then its result is waited for."""
MAX_RETRIES = 2
"""A configuration that kills its worker is tried again so often."""
WAIT_SECONDS = 0.2


@dataclass(frozen=True)
class Task:
    """What is tried, and how: the arguments of `chop.search.Search` that a runner needs.

    Attributes:
        artefacts: keeps the best models; None keeps none.
        is_shared: other processes can reach the storage.
    """

    space: SearchSpace
    measure: Measure
    goals: tuple[Goal, ...]
    sampler: str | BaseSampler
    seed: int
    catch: tuple[type[Exception], ...]
    callbacks: tuple[Callable[[Study, FrozenTrial], None], ...]
    artefacts: Artefacts | None
    is_shared: bool


class Runner:
    """Runs trials of one study in this process.

    Args:
        task: what is tried.
        study: Optuna's study, open in this process.
        ledger: of the same study.
    """

    def __init__(self, task: Task, study: Study, ledger: Ledger) -> None:
        self.task = task
        self.study = study
        self.ledger = ledger
        self.me = str(Worker.new())
        self.row = sampler_row(task.sampler)
        self.repeats = self.busy = 0
        self.exhausted = False

    def run(self, until: int, after_trial: Callable[[], None]) -> None:
        """Measures until so many configurations of the study are begun, or none is left."""
        parent, recovered = os.getppid(), float("-inf")
        with beating(self.ledger, self.me, alone=not self.task.is_shared):
            while os.getppid() == parent and not self.exhausted:
                full = not self.has_room(until)
                if full or time.monotonic() - recovered > BEAT_SECONDS:
                    self.recover()
                    recovered = time.monotonic()
                if full and not self.has_room(until):
                    return
                self.turn(until)
                after_trial()

    def has_room(self, until: int) -> bool:
        """True while fewer than `until` configurations are begun, or a lost one waits."""
        if self.ledger.count() < until:
            return True
        waiting = self._trials("WAITING")
        return any("retry_of" in trial.user_attrs for trial in waiting)

    def recover(self) -> int:
        """Fails the running trials whose worker is gone, and queues them again.

        Returns: how many.
        """
        running = self._trials("RUNNING")
        lost = [trial for trial in running if is_lost(trial, self.ledger)]
        for trial in lost:
            self._lose(trial)
        return len(lost)

    def turn(self, until: int) -> None:
        """One trial, from its proposal to its end."""
        from optuna.exceptions import UpdateFinishedTrialError

        trial_id = begin_trial(self.study, self.me)
        with holding(self.study._storage, trial_id) as store:
            try:
                self._try(self._open(trial_id), until, store)
            except UpdateFinishedTrialError:
                return  # this worker was taken for gone; whoever has the configuration goes on
            except BaseException:
                self._lose(self.study._storage.get_trial(trial_id))
                raise

    def _try(self, trial: Trial, until: int, store: Callable[[], None]) -> None:
        from optuna import TrialPruned

        try:
            config = self.task.space.suggest(trial, self.row.spelling)
        except TrialPruned as impossible:
            self._end(trial, "PRUNED", outcome="impossible", note=str(impossible))
            self._known(self.task.space.from_params(trial.params))
            return
        store()
        self._settle(trial, config, until)

    def _open(self, trial_id: int) -> Trial:
        """The trial with the sampler of its place: trials that were lost do not count."""
        from optuna import Trial

        number = self.study._storage.get_trial_number_from_id(trial_id)
        earlier = self.study._get_trials(deepcopy=False, use_cache=True)[:number]
        place = number - sum(outcome_of(trial) == "lost" for trial in earlier)
        seed = seed_of(self.task.seed, ["trial", place])
        problem = Problem(self.task.space, seed)
        self.study.sampler = self.row.make(problem)
        return Trial(self.study, trial_id)

    def _settle(self, trial: Trial, config: Config, until: int) -> None:
        """Measures the configuration, unless another trial did, or does."""
        key = self.task.space.key(config)
        while True:
            claim = self.ledger.claim(key, trial.number, until)
            if claim is None:
                return self._give_back(trial)
            if claim.is_new:
                return self._measure(trial, config, key)
            if claim.trial == trial.number:
                return leave_to_others(self.study, trial._trial_id, self.me)
            holder = self._holder(claim.trial, key)
            if holder is None:
                if self.ledger.take_over(key, trial.number, claim.trial):
                    return self._measure(trial, config, key)
            elif holder.state.is_finished():
                return self._repeat(trial, holder, config)
            elif is_lost(holder, self.ledger):
                self._lose(holder)
            elif self.busy < RESAMPLES:
                self.busy += 1
                return self._end(
                    trial, "FAIL", outcome="busy", note=f"trial {claim.trial} measures it"
                )
            else:
                time.sleep(WAIT_SECONDS)

    def _holder(self, number: int, key: str) -> FrozenTrial | None:
        """The trial that holds a claim; None where it is lost, or the claim is of another study."""
        storage, study_id = self.study._storage, self.study._study_id
        try:
            trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, number)
        except KeyError:
            return None
        holder = storage.get_trial(trial_id)
        config = config_of(holder, self.task.space)
        if config is None or self.task.space.key(config) != key or outcome_of(holder) == "lost":
            return None
        return holder

    def _measure(self, trial: Trial, config: Config, key: str) -> None:
        self.repeats = self.busy = 0

        def report(step: int, value: float) -> None:
            trial.report(value, step)
            if trial.should_prune():
                raise Pruned(f"behind at step {step}")

        try:
            measured = self.task.measure(config, report if self._is_single else _no_report)
            values = check_values(measured, self.task.goals)
        except Pruned as pruned:
            return self._end(trial, "PRUNED", note=str(pruned))
        except self.task.catch as error:
            return self._end(trial, "FAIL", note=f"{type(error).__name__}: {error}")
        self._store(trial, config, key, values)
        return None

    def _store(self, trial: Trial, config: Config, key: str, values: Mapping[str, float]) -> None:
        """Tells the values; a model to keep is on disk before its trial is complete."""
        artefacts = self.task.artefacts
        if artefacts is not None:
            artefacts.offer(config, key, values, self._result())
        self._complete(trial, values)
        if artefacts is not None:
            artefacts.clean(self._result())

    def _repeat(self, trial: Trial, holder: FrozenTrial, config: Config) -> None:
        """Tells again what an earlier trial of the same configuration gave."""
        known = {"outcome": "cached", "note": f"as trial {holder.number}"}
        if holder.state.name == "COMPLETE":
            self._complete(trial, holder.user_attrs["values"], **known)
        else:
            if holder.last_step is not None:
                trial.report(holder.intermediate_values[holder.last_step], holder.last_step)
            self._end(trial, holder.state.name, **known)
        self._known(config)

    def _known(self, config: Config) -> None:
        """After too many known proposals, queues an unseen configuration near the last one."""
        self.repeats += 1
        if self.repeats < PATIENCE:
            return
        self.repeats = 0
        near = unseen_near(self.task.space, config, self.ledger.claimed(), self.task.seed)
        if near is None:
            self.exhausted = True
        else:
            self._queue(self.task.space.to_params(near, self.row.spelling))

    def _give_back(self, trial: Trial) -> None:
        """Ends a trial that the total has no room for; what was queued stays queued."""
        stored = self.study._storage.get_trial(trial._trial_id)
        fixed = stored.system_attrs.get("fixed_params")
        self._end(trial, "FAIL", outcome="surplus")
        if fixed:
            self._queue(fixed)

    def _lose(self, trial: FrozenTrial) -> None:
        """Fails a trial that nobody will finish, and queues its configuration again.

        The queue comes first: a kill in between, or another worker that notices the loss at once,
        may queue it twice. A configuration is measured once all the same; one that kills its
        workers may kill a few more.
        """
        from optuna.exceptions import UpdateFinishedTrialError

        retries = trial.user_attrs.get("retries", 0)
        params = trial.system_attrs.get("fixed_params") or trial.params
        decided = config_of(trial, self.task.space) is not None
        attrs: dict[str, Any] = {"outcome": "lost", "note": "its worker ended before it did"}
        if retries >= MAX_RETRIES:
            attrs = {"outcome": "failed", "note": f"its worker ended {retries + 1} times"}
        elif decided and not self._is_queued(trial.number):
            self._queue(params, retry_of=trial.number, retries=retries + 1)
        try:
            for name, value in attrs.items():
                self.study._storage.set_trial_user_attr(trial._trial_id, name, value)
            self.study._storage.set_trial_state_values(trial._trial_id, _state("FAIL"))
        except UpdateFinishedTrialError:
            pass  # it ended after all, or another worker noted the loss

    def _is_queued(self, number: int) -> bool:
        trials = self.study.get_trials(deepcopy=False)
        return any(trial.user_attrs.get("retry_of") == number for trial in trials[number + 1 :])

    def _queue(self, params: Mapping[str, Any], **attrs: Any) -> None:
        self.study.enqueue_trial(dict(params), user_attrs=attrs)

    def _complete(self, trial: Trial, values: Mapping[str, float], **attrs: str) -> None:
        told = [values[goal.name] for goal in objectives_of(self.task.goals)]
        self._end(trial, "COMPLETE", told, values=dict(values), **attrs)

    def _end(self, trial: Trial, state: str, told: list[float] | None = None, **attrs: Any) -> None:
        for name, value in attrs.items():
            trial.set_user_attr(name, value)
        self._set_constraints(trial, attrs.get("values"))
        frozen = self.study.tell(trial, told, state=_state(state), skip_if_finished=True)
        for callback in self.task.callbacks:
            callback(self.study, frozen)

    def _set_constraints(self, trial: Trial, values: Mapping[str, float] | None) -> None:
        for goal in self.task.goals:
            if values is not None and goal.is_constraint:
                name = f"{goal.name} {goal.direction}"
                trial.set_constraint(name, goal.excess(values[goal.name]))

    def _trials(self, state: str) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=(_state(state),))

    def _result(self) -> Any:
        return read_result(self.study, self.task.space, self.task.goals)

    @property
    def _is_single(self) -> bool:
        return len(self.study.directions) == 1


def _no_report(step: int, value: float) -> None:
    """Pruners compare one number; with several objectives there is none."""


def _state(name: str) -> TrialState:
    from optuna.trial import TrialState

    return TrialState[name]
