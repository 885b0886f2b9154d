"""Optuna study in memory that follows a ledger, for samplers, pruners, plots and dashboards.

Fence around Optuna's internals that have public names: methods of its storages, the fields of
`FrozenTrial`, the "fixed_params" of enqueued trials and where constraints are kept, as
`OPTUNA_VERSIONS` have them; `tests/search/test_optuna_study.py` fails first where they change.
`chop.private.optuna_api` has what is private by name. Optuna 5 keeps each constraint by its name,
Optuna 4 all of them as one list, which samplers with a `constraints_func` read. Rows have the names
whichever wrote them.

Optuna's own tables are not used: a trial of 50 choices takes them ten times as long to write and
to read as one row of the ledger (`benchmarks/search_storage.py`), and they cannot say who runs a
trial.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import optuna
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from chop.search.ledger import RUNNING, Row
from chop.search.objective import Goals, select_objectives
from chop.search.space import Config, ParamEncoding, SearchSpace

if TYPE_CHECKING:
    from optuna.pruners import BasePruner

OPTUNA_VERSIONS = ">=4.2,<6"
"""Versions whose private API is the one used here."""
HAS_NAMED_CONSTRAINTS = hasattr(Trial, "set_constraint")
"""Whether this is Optuna 5."""
CONSTRAINTS = "constraints"
"""System attribute with all constraints of a trial; before `:` and a name, with that one."""
_WARNING_FILTERS = threading.Lock()
CLAIMED_ELSEWHERE = "busy"
"""Outcome of a trial that another worker has."""


class InMemoryStudy:
    """Optuna study in memory, kept equal to the rows of a ledger.

    Args:
        name: of the study.
        space: search space of its trials.
        goals: the objectives are the study's; constraints are reported with each trial.
        encoding: how the sampler takes options, as text or as index.
        pruner: of the study.
        storage: holds the study; None (default) makes one of its own.

    Attributes:
        study: Optuna's study.
    """

    def __init__(
        self,
        name: str,
        space: SearchSpace,
        goals: Goals,
        encoding: ParamEncoding,
        pruner: BasePruner,
        storage: InMemoryStorage | None = None,
    ) -> None:
        self.space, self.encoding = space, encoding
        self.distributions = space.distributions(encoding)
        self.storage = InMemoryStorage() if storage is None else storage
        with quiet():
            self.study = optuna.create_study(
                study_name=name,
                storage=self.storage,
                pruner=pruner,
                directions=[goal.direction for goal in select_objectives(goals)],
            )
        self._study_id = self.storage.get_study_id_from_name(name)
        self._ids: dict[int, int] = {}
        self._own: set[int] = set()
        self._open: set[int] = set()
        self._next = 0

    def follow(
        self, rows: Sequence[Row], is_dead: Callable[[str], bool] = lambda worker: False
    ) -> None:
        """Takes over what other workers have begun, reported or finished.

        Args:
            rows: of the ledger, all of them.
            is_dead: tells of a worker whether it has ended. What it left is not in the study until
                it is begun again: so with one worker a trial's number is its row's, by which
                Hyperband and CMA-ES draw.
        """
        new = range(self._next, len(rows))
        self._next = len(rows)
        for row in [rows[number] for number in sorted({*self._open, *new})]:
            if row.number in self._own:
                continue
            if row.number in self._ids:
                self._update(row)
            elif row.is_finished or (row.outcome == RUNNING and not is_dead(row.worker)):
                trial = self._frozen(row)
                self._ids[row.number] = self.storage.create_new_trial(self._study_id, trial)
            (self._open.discard if row.is_finished else self._open.add)(row.number)

    def ask(self, config: Config | None = None) -> Trial:
        """A new trial of the sampler's choice, or of a configuration."""
        if config is not None:
            self.study.enqueue_trial(self.space.to_params(config, self.encoding))
        return self.study.ask(self.distributions)

    def restore(self, trial: Trial, row: Row) -> None:
        """Gives a trial what the sampler noted of it when the row was begun by another worker.

        Samplers note nothing of a configuration that they are given; CMA-ES and NSGA-II would leave
        it out of their generation.
        """
        for name, value in row.noted.get("asked", {}).items():
            self.storage.set_trial_system_attr(self._id(trial), name, value)

    def adopt(self, number: int, trial: Trial) -> None:
        """Maps a row of the ledger, which this process finishes, to a trial of this study."""
        if number in self._ids:
            self._end(self._ids[number])
        self._ids[number] = self._id(trial)
        self._own.add(number)
        self._open.discard(number)

    def leave(self, number: int) -> None:
        """Unmaps a row, which this process no longer finishes."""
        self._end(self._ids.pop(number))
        self._own.discard(number)
        self._open.add(number)

    def constrain(self, trial: Trial, excess: Mapping[str, float]) -> None:
        """Notes by how much a trial is beyond each constraint; 0 and less is within."""
        for name, value in excess.items():
            if HAS_NAMED_CONSTRAINTS:
                trial.set_constraint(name, value)
            else:
                self.storage.set_trial_system_attr(self._id(trial), f"{CONSTRAINTS}:{name}", value)

    def drop(self, trial: Trial) -> None:
        """Ends a trial whose configuration another worker measures."""
        self._end(self._id(trial))

    def frozen(self, trial: Trial) -> FrozenTrial:
        """A trial of this study as it is now."""
        return self.storage.get_trial(self._id(trial))

    def _id(self, trial: Trial) -> int:
        numbers = self.storage.get_trial_id_from_study_id_trial_number
        return numbers(self._study_id, trial.number)

    def _end(self, trial_id: int) -> None:
        if not self.storage.get_trial(trial_id).state.is_finished():
            self.storage.set_trial_user_attr(trial_id, "outcome", CLAIMED_ELSEWHERE)
            self.storage.set_trial_state_values(trial_id, TrialState.FAIL)

    def _update(self, row: Row) -> None:
        trial_id, trial = self._ids[row.number], self._frozen(row)
        for step, value in trial.intermediate_values.items():
            self.storage.set_trial_intermediate_value(trial_id, step, value)
        for name, value in trial.system_attrs.items():
            self.storage.set_trial_system_attr(trial_id, name, value)
        for name, value in trial.user_attrs.items():
            self.storage.set_trial_user_attr(trial_id, name, value)
        if row.is_finished:
            self.storage.set_trial_state_values(trial_id, trial.state, trial.values)

    def _frozen(self, row: Row) -> FrozenTrial:
        noted = row.noted
        user_attrs: dict[str, Any] = {
            name: noted[name] for name in ("values", "note") if name in noted
        }
        return _StoredTrial(
            number=-1,
            trial_id=-1,
            state=TrialState[noted.get("state", "RUNNING")],
            value=None,
            values=noted.get("told"),
            datetime_start=_time(noted.get("start")),
            datetime_complete=_time(noted.get("end")),
            params=self.space.to_params(noted["config"], self.encoding),
            distributions=self.distributions,
            user_attrs={"outcome": row.outcome, **user_attrs},
            system_attrs=_with_list(noted.get("attrs", {})),
            intermediate_values={int(k): v for k, v in noted.get("steps", {}).items()},
        )


def build_document(trial: FrozenTrial, config: Mapping[str, str]) -> dict[str, Any]:
    """Document of a trial's row, from which other processes make the trial again."""
    end = trial.datetime_complete
    noted: dict[str, Any] = {
        "config": dict(config),
        "state": trial.state.name,
        "told": trial.values,
        "start": str(trial.datetime_start) if trial.datetime_start else None,
        "end": str(end) if end else None,
        "steps": trial.intermediate_values,
        "attrs": {name: x for name, x in trial.system_attrs.items() if name != CONSTRAINTS},
    }
    noted.update({name: x for name, x in trial.user_attrs.items() if name in ("values", "note")})
    return {name: value for name, value in noted.items() if value not in (None, {}, "")}


def trial_params(trial: FrozenTrial) -> Mapping[str, Any]:
    """The parameters of a trial; of one that waits in Optuna's queue those it was enqueued with."""
    params: Mapping[str, Any] = trial.params or trial.system_attrs.get("fixed_params", {})
    return params


def get_excess(trial: FrozenTrial) -> dict[str, float]:
    """By how much a trial is beyond each constraint, by its name; a list has numbers for names."""
    if HAS_NAMED_CONSTRAINTS:
        return trial.constraints
    prefix = f"{CONSTRAINTS}:"
    attrs = trial.system_attrs
    named = {n.removeprefix(prefix): x for n, x in attrs.items() if n.startswith(prefix)}
    return named or {str(i): x for i, x in enumerate(attrs.get(CONSTRAINTS) or ())}


def constraint_settings() -> dict[str, Any]:
    """Arguments with which a sampler of Optuna's reads constraints; Optuna 5 needs none."""
    return {} if HAS_NAMED_CONSTRAINTS else {"constraints_func": _excesses}


@contextlib.contextmanager
def without_experimental_warnings() -> Iterator[None]:
    """Inside, nothing is said of what is experimental in Optuna 4 and the same in Optuna 5.

    One thread at a time: the filters of warnings are the process's.
    """
    if HAS_NAMED_CONSTRAINTS:
        yield
        return
    with _WARNING_FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def _excesses(trial: FrozenTrial) -> list[float]:
    return list(get_excess(trial).values())


def _with_list(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """System attributes with the constraints by name also as the list that Optuna 4 reads."""
    found = [x for name, x in attrs.items() if name.startswith(f"{CONSTRAINTS}:")]
    return dict(attrs) if HAS_NAMED_CONSTRAINTS else {**attrs, CONSTRAINTS: found}


def _time(text: str | None) -> datetime.datetime | None:
    return None if text is None else datetime.datetime.fromisoformat(text)


class _StoredTrial(FrozenTrial):
    """Frozen trial whose copies share its distributions: most of it, and never changed."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _StoredTrial:
        copied = copy.copy(self)
        memo[id(self.distributions)] = self.distributions
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside, Optuna only warns: what a search does is shown by its own progress."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)
