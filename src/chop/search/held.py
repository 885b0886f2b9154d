"""Optuna's tables, for a worker that alone writes the trial which it runs.

Optuna writes each parameter and attribute in a transaction of its own, and reads the trial again
before each step: for a trial of half a second that is more than a twentieth of it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.storages import BaseStorage, _CachedStorage
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import insert
from sqlalchemy.orm import Session


class HoldingStorage(_CachedStorage):
    """Keeps the trial that this process runs at hand: it is read once, and written in two parts."""

    _held: FrozenTrial | None = None
    _rows: dict[type, dict[str, dict[str, Any]]]
    """What waits, by table and name."""
    _follows: bool
    """No trial of another process lies between the held one and those that are known."""

    @contextlib.contextmanager
    def holding(self, trial_id: int) -> Iterator[Callable[[], None]]:
        """Inside, parameters and attributes of a running trial wait for its end.

        Yields: a function that stores what waits, in one transaction. It raises
            UpdateFinishedTrialError when the trial was ended by another process.
        """
        self._held, self._rows = self._as_begun(trial_id), {}
        try:
            yield self._store
        finally:
            self._held = None

    def _as_begun(self, trial_id: int) -> FrozenTrial:
        study_id, number = self._trial_id_to_study_id_and_number[trial_id]
        trials = self._studies[study_id].trials
        known = trials[number]
        others = (trial._trial_id for trial in trials.values() if trial is not known)
        self._follows = trial_id == max(others, default=0) + 1
        # One that was waiting is known as it was before it was taken.
        return known if known.state == TrialState.RUNNING else super().get_trial(trial_id)

    def _store(self) -> None:
        # Two workers may have taken one waiting trial: its parameters are the same by both.
        with _create_scoped_session(
            self._backend.scoped_session, ignore_integrity_error=True
        ) as session:
            self._write(session)

    def _write(self, session: Session) -> None:
        """Adds what waits to a session, which is committed later."""
        if self._held is None:
            return
        trial_id = self._held._trial_id
        trial = models.TrialModel.find_or_raise_by_id(trial_id, session, for_update=True)
        self.check_trial_is_updatable(trial_id, trial.state)
        for table, rows in self._rows.items():
            if rows:
                session.execute(insert(table), list(rows.values()))
        self._rows = {}

    def _own(self, trial_id: int) -> FrozenTrial | None:
        """The held trial, if it is the one of that id."""
        held = self._held
        return held if held is not None and held._trial_id == trial_id else None

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """As Optuna's; the held trial as this process has written it."""
        return self._own(trial_id) or super().get_trial(trial_id)

    def get_trial_number_from_id(self, trial_id: int) -> int:
        """As Optuna's, which reads the whole trial for it."""
        known = self._trial_id_to_study_id_and_number.get(trial_id)
        return super().get_trial_number_from_id(trial_id) if known is None else known[1]

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        """As Optuna's; of the held trial it waits."""
        if self._own(trial_id) is None:
            super().set_trial_param(trial_id, param_name, param_value_internal, distribution)
            return
        self._rows.setdefault(models.TrialParamModel, {})[param_name] = {
            "trial_id": trial_id,
            "param_name": param_name,
            "param_value": param_value_internal,
            "distribution_json": distribution_to_json(distribution),
        }

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """As Optuna's; of the held trial it waits, unless it replaces a stored one."""
        held, table = self._own(trial_id), models.TrialUserAttributeModel
        if held is None or not self._waits(table, held.user_attrs, trial_id, key, value):
            super().set_trial_user_attr(trial_id, key, value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """As Optuna's; of the held trial it waits, unless it replaces a stored one."""
        held, table = self._own(trial_id), models.TrialSystemAttributeModel
        if held is None or not self._waits(table, held.system_attrs, trial_id, key, value):
            super().set_trial_system_attr(trial_id, key, value)

    def _waits(
        self, table: type, known: dict[str, Any], trial_id: int, key: str, value: Any
    ) -> bool:
        """Notes an attribute, and lets it wait; False where a stored one has to be replaced."""
        waiting = self._rows.setdefault(table, {})
        can_wait = key in waiting or key not in known
        if can_wait:
            waiting[key] = {"trial_id": trial_id, "key": key, "value_json": json.dumps(value)}
        known[key] = value
        return can_wait

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """As Optuna's, after what waits is stored."""
        held = self._own(trial_id)
        if held is None:
            return super().set_trial_state_values(trial_id, state, values)
        # A thread has one session: what Optuna commits in it is stored with what waits.
        with _create_scoped_session(self._backend.scoped_session) as session:
            self._write(session)
            is_set = super().set_trial_state_values(trial_id, state, values)
            stored = session.get(models.TrialModel, trial_id)
            held.state, held.datetime_complete = state, stored.datetime_complete
        if values is not None:
            held.values = list(values)
        self._note_finished(held)
        return is_set

    def _note_finished(self, trial: FrozenTrial) -> None:
        """Spares Optuna reading the trial once more."""
        study = self._studies[self._trial_id_to_study_id_and_number[trial._trial_id][0]]
        study.trials[trial.number] = trial
        study.unfinished_trial_ids.discard(trial._trial_id)
        if self._follows:
            study.last_finished_trial_id = max(study.last_finished_trial_id, trial._trial_id)


def holding(storage: BaseStorage, trial_id: int) -> AbstractContextManager[Callable[[], None]]:
    """`HoldingStorage.holding`; of another storage, nothing waits."""
    if isinstance(storage, HoldingStorage):
        return storage.holding(trial_id)
    return nullcontext(lambda: None)
