"""Optuna's tables, for a worker that alone writes the trial which it runs.

Optuna writes each parameter and attribute in a transaction of its own, and reads the trial again
before each step: for a trial of half a second that is more than a twentieth of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any

from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.storages import BaseStorage, _CachedStorage
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import insert

Write = Callable[[Any], None]
"""Adds rows to a session of SQLAlchemy, which is committed later."""


class HoldingStorage(_CachedStorage):
    """Keeps the trial that this process runs at hand: it is read once, and written in two parts."""

    _held: FrozenTrial | None = None
    _params: list[dict[str, Any]]
    _waiting: list[Write]

    @contextlib.contextmanager
    def holding(self, trial_id: int) -> Iterator[Callable[[], None]]:
        """Inside, parameters and attributes of a running trial wait for its end.

        Yields: a function that stores what waits, in one transaction. It raises
            UpdateFinishedTrialError when the trial was ended by another process.
        """
        self._held, self._params, self._waiting = self._as_begun(trial_id), [], []
        try:
            yield self._store
        finally:
            self._held = None

    def _as_begun(self, trial_id: int) -> FrozenTrial:
        study_id, number = self._trial_id_to_study_id_and_number[trial_id]
        known = self._studies[study_id].trials[number]
        # One that was waiting is known as it was before it was taken.
        return known if known.state == TrialState.RUNNING else super().get_trial(trial_id)

    def _store(self) -> None:
        if self._held is None or not (self._params or self._waiting):
            return
        # Two workers may have taken one waiting trial: its parameters are the same by both.
        with _create_scoped_session(
            self._backend.scoped_session, ignore_integrity_error=True
        ) as session:
            trial_id = self._held._trial_id
            trial = models.TrialModel.find_or_raise_by_id(trial_id, session, for_update=True)
            self.check_trial_is_updatable(trial_id, trial.state)
            if self._params:
                session.execute(insert(models.TrialParamModel), self._params)
            for write in self._waiting:
                write(session)
        self._params, self._waiting = [], []

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
        row = {
            "trial_id": trial_id,
            "param_name": param_name,
            "param_value": param_value_internal,
            "distribution_json": distribution_to_json(distribution),
        }
        self._params.append(row)

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """As Optuna's; of the held trial it waits."""
        held = self._own(trial_id)
        if held is None:
            super().set_trial_user_attr(trial_id, key, value)
            return
        held.user_attrs[key] = value
        self._wait(models.TrialUserAttributeModel, trial_id, key, value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """As Optuna's; of the held trial it waits."""
        held = self._own(trial_id)
        if held is None:
            super().set_trial_system_attr(trial_id, key, value)
            return
        held.system_attrs[key] = value
        self._wait(models.TrialSystemAttributeModel, trial_id, key, value)

    def _wait(self, table: type, trial_id: int, key: str, value: Any) -> None:
        set_attr = self._backend._set_trial_attr_without_commit
        self._waiting.append(lambda session: set_attr(session, table, trial_id, key, value))

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """As Optuna's, after what waits is stored."""
        held = self._own(trial_id)
        if held is None:
            return super().set_trial_state_values(trial_id, state, values)
        self._store()
        is_set = super().set_trial_state_values(trial_id, state, values)
        held.state, held.datetime_complete = state, datetime.now()
        if values is not None:
            held.values = list(values)
        return is_set


def holding(storage: BaseStorage, trial_id: int) -> AbstractContextManager[Callable[[], None]]:
    """`HoldingStorage.holding`; of another storage, nothing waits."""
    if isinstance(storage, HoldingStorage):
        return storage.holding(trial_id)
    return nullcontext(lambda: None)
