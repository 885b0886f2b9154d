"""In-memory Optuna study that mirrors a ledger, for samplers, pruners, plots and dashboards.

This module isolates the use of Optuna internals with public names in `OPTUNA_VERSIONS`: storage
methods, fields of `FrozenTrial`, the "fixed_params" of enqueued trials, and the place of
constraints. `tests/search/test_optuna_study.py` fails first if they change. Private names are in
`chop.private.optuna_api`. Optuna 5 stores each constraint by its name; Optuna 4 stores one list,
which samplers with a `constraints_func` read. Rows always have the names.

Optuna's own tables are not used: for a trial of 50 choices they take ten times as long to write and
to read as one ledger row (`benchmarks/search_storage.py`), and they do not record the worker of a
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

from chop.errors import ChopError, ConfigError, describe, first_line
from chop.search.ledger import RUNNING, Row
from chop.search.objective import Goals, select_objectives
from chop.search.space import Config, ParamEncoding, SearchSpace

if TYPE_CHECKING:
    from optuna.pruners import BasePruner

OPTUNA_VERSIONS = ">=4.2,<6"
"""Supported versions of Optuna."""
HAS_NAMED_CONSTRAINTS = hasattr(Trial, "set_constraint")
"""True for Optuna 5."""
CONSTRAINTS = "constraints"
"""System attribute with all constraints of a trial, or prefix `constraints:NAME` of one."""
_WARNING_FILTERS = threading.Lock()
CLAIMED_ELSEWHERE = "busy"
"""Outcome of a trial whose configuration another worker measures."""


class InMemoryStudy:
    """In-memory Optuna study kept equal to the rows of a ledger.

    Args:
        name: name of the study.
        space: search space of its trials.
        goals: objectives of the study. Constraints are stored with each trial.
        encoding: parameter encoding of the sampler: text or index.
        pruner: pruner of the study.
        storage: Optuna storage of the study. None (default) creates one.

    Attributes:
        study: the Optuna study.
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
        """Adds trials that other workers have started, reported or finished.

        Args:
            rows: all rows of the ledger.
            is_dead: returns whether a worker has ended. Its trials are added when they are started
                again. With one worker, a trial then has the number of its row, on which the draws
                of Hyperband and CMA-ES depend.
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
        """Returns a new trial for a configuration, or for one chosen by the sampler."""
        if config is not None:
            self.study.enqueue_trial(self.space.to_params(config, self.encoding))
        try:
            return self.study.ask(self.distributions)
        except ChopError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            name = type(self.study.sampler).__name__
            options = {choice.name: list(choice.texts) for choice in self.space.choices}
            raise ConfigError(
                f"sampler {name}: {first_line(error).rstrip('.')}; its parameters here are the "
                f"texts of the options: {describe(options)}."
            ) from error

    def restore(self, trial: Trial, row: Row) -> None:
        """Restores the sampler's attributes of a trial whose row another worker started.

        Samplers store no attributes for given configurations, so CMA-ES and NSGA-II would omit the
        trial from their generation.
        """
        for name, value in row.parsed.get("asked", {}).items():
            self.storage.set_trial_system_attr(self._id(trial), name, value)

    def adopt(self, number: int, trial: Trial) -> None:
        """Maps a row that this process finishes to a trial of this study."""
        # `follow` has added a copy of this row, which would count twice.
        if number in self._ids:
            self._end(self._ids[number])
        self._ids[number] = self._id(trial)
        self._own.add(number)
        self._open.discard(number)

    def leave(self, number: int) -> None:
        """Unmaps a row that another process will finish."""
        self._end(self._ids.pop(number))
        self._own.discard(number)
        self._open.add(number)

    def constrain(self, trial: Trial, excess: Mapping[str, float]) -> None:
        """Stores the violation of each constraint; 0 and less is feasible."""
        for name, value in excess.items():
            if HAS_NAMED_CONSTRAINTS:
                trial.set_constraint(name, value)
            else:
                self.storage.set_trial_system_attr(self._id(trial), f"{CONSTRAINTS}:{name}", value)

    def drop(self, trial: Trial) -> None:
        """Ends a trial whose configuration another worker measures."""
        self._end(self._id(trial))

    def frozen(self, trial: Trial) -> FrozenTrial:
        """Returns the current state of a trial of this study."""
        return self.storage.get_trial(self._id(trial))

    def _id(self, trial: Trial) -> int:
        numbers = self.storage.get_trial_id_from_study_id_trial_number
        return numbers(self._study_id, trial.number)

    def _end(self, trial_id: int) -> None:
        if not self.storage.get_trial(trial_id).state.is_finished():
            self.storage.set_trial_user_attr(trial_id, "outcome", CLAIMED_ELSEWHERE)
            # Optuna cannot remove a trial, but its samplers ignore failed ones.
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
        document = row.parsed
        user_attrs: dict[str, Any] = {
            name: document[name] for name in ("values", "note") if name in document
        }
        return _StoredTrial(
            # The storage assigns the number and the id.
            number=-1,
            trial_id=-1,
            state=TrialState[document.get("state", "RUNNING")],
            value=None,
            values=document.get("told"),
            datetime_start=_time(document.get("start")),
            datetime_complete=_time(document.get("end")),
            params=self.space.to_params(document["config"], self.encoding),
            distributions=self.distributions,
            user_attrs={"outcome": row.outcome, **user_attrs},
            system_attrs=_with_list(document.get("attrs", {})),
            intermediate_values={int(k): v for k, v in document.get("steps", {}).items()},
        )


def build_document(trial: FrozenTrial, config: Mapping[str, str]) -> dict[str, Any]:
    """Returns the document of a trial's row, from which other processes restore the trial."""
    end = trial.datetime_complete
    document: dict[str, Any] = {
        "config": dict(config),
        "state": trial.state.name,
        "told": trial.values,
        "start": str(trial.datetime_start) if trial.datetime_start else None,
        "end": str(end) if end else None,
        "steps": trial.intermediate_values,
        # `_with_list` restores the list of constraints from the named ones.
        "attrs": {name: x for name, x in trial.system_attrs.items() if name != CONSTRAINTS},
    }
    document.update({name: x for name, x in trial.user_attrs.items() if name in ("values", "note")})
    return {name: value for name, value in document.items() if value not in (None, {}, "")}


def trial_params(trial: FrozenTrial) -> Mapping[str, Any]:
    """Returns the parameters of a trial; for an enqueued trial, its fixed parameters."""
    params: Mapping[str, Any] = trial.params or trial.system_attrs.get("fixed_params", {})
    return params


def get_excess(trial: FrozenTrial) -> dict[str, float]:
    """Returns the violation of each constraint by name; constraints in a list are numbered."""
    if HAS_NAMED_CONSTRAINTS:
        return trial.constraints
    prefix = f"{CONSTRAINTS}:"
    attrs = trial.system_attrs
    named = {n.removeprefix(prefix): x for n, x in attrs.items() if n.startswith(prefix)}
    return named or {str(i): x for i, x in enumerate(attrs.get(CONSTRAINTS) or ())}


def constraint_settings() -> dict[str, Any]:
    """Returns sampler arguments for constraints; Optuna 5 needs none."""
    return {} if HAS_NAMED_CONSTRAINTS else {"constraints_func": _excesses}


@contextlib.contextmanager
def without_experimental_warnings() -> Iterator[None]:
    """Context manager that suppresses experimental warnings of Optuna 4.

    Threads take turns, because warning filters belong to the process.
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
    """Returns system attributes with constraints also as the list that Optuna 4 reads."""
    excesses = [x for name, x in attrs.items() if name.startswith(f"{CONSTRAINTS}:")]
    return dict(attrs) if HAS_NAMED_CONSTRAINTS else {**attrs, CONSTRAINTS: excesses}


def _time(text: str | None) -> datetime.datetime | None:
    return None if text is None else datetime.datetime.fromisoformat(text)


class _StoredTrial(FrozenTrial):
    """Frozen trial whose copies share its immutable distributions, its largest part."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _StoredTrial:
        copied = copy.copy(self)
        memo[id(self.distributions)] = self.distributions
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Context manager that limits Optuna's log to warnings."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)
