"""Trial history of a study as arrays: the whole state of the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chop.private.optuna_api import cached_trials
from chop.search.optuna_study import CLAIMED_ELSEWHERE, get_excess, trial_params
from chop.search.samplers.surrogate import Array, Codes
from chop.search.space import Config, SearchSpace, all_active, as_it_is

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

Code = tuple[int, ...]
"""Integer encoding of a configuration: per choice the index of the option taken."""


APART = 1.5
"""Place of an inactive choice on the line of its options: farther from all than they are."""


class Coding:
    """Integer encoding of configurations, and back.

    Attributes:
        counts: options of each choice.
        costs: (D, K), or None where no choice has any.
        places: of each choice's options on a line from 0 to 1, in the order of its cost or, where
            it has none, of its options; in a conditional space one more, apart from them, for a
            choice that does not count.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.counts = [len(choice.texts) for choice in space.choices]
        self.index = [{t: i for i, t in enumerate(c.texts)} for c in space.choices]
        self.is_conditional = space.active is not all_active
        self.is_plain = space.canonical is as_it_is and not self.is_conditional
        self.costs = _costs(space)
        self.ranks = [
            np.argsort(np.argsort([(c.cost or {}).get(t, 0.0) for t in c.texts], kind="stable"))
            for c in space.choices
        ]
        self.places = [
            np.append(rank / max(1, len(rank) - 1), [APART] * self.is_conditional)
            for rank in self.ranks
        ]
        self._known: dict[int, tuple[FrozenTrial, Code | None]] = {}

    def config(self, code: Code) -> Config:
        """The configuration of a code."""
        taken = zip(self.space.choices, code, strict=True)
        return {choice.name: choice.texts[place] for choice, place in taken}

    def code(self, params: Mapping[str, Any]) -> Code | None:
        """The code of a trial's parameters, of all that give the same thing the one that stands
        for them; None where some choice is open."""
        found = self._plain(params)
        if found is None or self.is_plain:
            return found
        return self._plain(self.space.folded(self.config(found)))

    def active(self, codes: Codes) -> NDArray[np.bool_]:
        """Mask of the active choices of candidates (C, D): (C, D)."""
        if not self.is_conditional:
            return np.ones(codes.shape, dtype=bool)
        values = (self.space.values(self.config(tuple(row))) for row in codes.tolist())
        live = [self.space.active(each) for each in values]
        names = list(self.space.by_name)
        return np.array([[name in each for name in names] for each in live]).reshape(codes.shape)

    def marked(self, codes: Codes) -> Codes:
        """Candidates (C, D) as surrogates see them: inactive is one more option."""
        return np.where(self.active(codes), codes, self.counts)

    def get_code(self, trial: FrozenTrial) -> Code | None:
        """`code` of a trial; of one that has ended, read once: it changes no more."""
        known, code = self._known.get(trial.number, (None, None))
        if known is not trial:
            code = self.code(trial_params(trial))
            if trial.state.is_finished():
                self._known[trial.number] = (trial, code)
        return code

    def _plain(self, params: Mapping[str, Any]) -> Code | None:
        found: list[Any] = []
        for choice, index in zip(self.space.choices, self.index, strict=True):
            value = params.get(choice.name)
            found.append(index.get(value, -1) if isinstance(value, str) else value)
        known = all(isinstance(i, int) and i >= 0 for i in found)
        return tuple(found) if known else None

    def is_feasible(self, code: Code) -> bool:
        """True where no rule of the space excludes the configuration."""
        return self.space.is_feasible(self.config(code))

    def uniform(self, share: float) -> Code:
        """The option of each choice at a quantile of its cost: 0 the cheapest, 1 the dearest."""
        return tuple(
            int(np.flatnonzero(rank == round(share * (len(rank) - 1)))[0]) for rank in self.ranks
        )


@lru_cache(maxsize=4)
def get_coding(space: SearchSpace) -> Coding:
    """The coding of a space, made once."""
    return Coding(space)


def _costs(space: SearchSpace) -> Array | None:
    if all(choice.cost is None for choice in space.choices):
        return None
    most = max(len(choice.texts) for choice in space.choices) + (space.active is not all_active)
    costs = np.zeros((len(space.choices), most))
    for row, choice in zip(costs, space.choices, strict=True):
        row[: len(choice.texts)] = [(choice.cost or {}).get(text, 0.0) for text in choice.texts]
    return costs


@dataclass
class History:
    """The trials of a study.

    Attributes:
        taken: codes of all configurations that were proposed, however they ended.
        pending: of those that run or wait.
        undecided: earlier trials that run and have no configuration yet.
        dropped: of those that a pruner stopped.
        measured: (N, D) of those that gave values.
        values: (N, J): the objectives, turned so that more is better.
        excess: (N, B): violation of each constraint, feasible at or below 0.
    """

    taken: set[Code] = field(default_factory=set)
    pending: list[Code] = field(default_factory=list)
    undecided: int = 0
    dropped: list[Code] = field(default_factory=list)
    measured: Codes = field(default_factory=lambda: np.empty((0, 0), dtype=np.int64))
    values: Array = field(default_factory=lambda: np.empty((0, 0)))
    excess: Array = field(default_factory=lambda: np.empty((0, 0)))


def read_history(study: Study, coding: Coding, number: int) -> History:
    """All trials but the one of that number; each configuration once."""
    signs = np.array([1.0 if d.name == "MAXIMIZE" else -1.0 for d in study.directions])
    found = History()
    rows: dict[Code, FrozenTrial] = {}
    for trial in cached_trials(study):
        code = coding.get_code(trial)
        state = trial.state.name
        if (
            trial.number == number
            or code is None
            or trial.user_attrs.get("outcome") == CLAIMED_ELSEWHERE
        ):
            found.undecided += state == "RUNNING" and trial.number < number
            continue
        if state == "COMPLETE":
            rows.setdefault(code, trial)
        elif state in ("RUNNING", "WAITING"):
            found.pending.append(code)
        elif state == "PRUNED" and trial.intermediate_values and code not in found.taken:
            found.dropped.append(code)
        found.taken.add(code)
    found.measured = np.array(list(rows), dtype=np.int64).reshape(len(rows), len(coding.counts))
    found.values = signs * np.array([t.values for t in rows.values()]).reshape(
        len(rows), len(signs)
    )
    found.excess = _excess(list(rows.values()))
    return found


def _excess(trials: list[FrozenTrial]) -> Array:
    """(N, B); a constraint that a trial does not tell counts as met."""
    found = [get_excess(trial) for trial in trials]
    names = sorted({name for each in found for name in each})
    excess = [[each.get(name, 0.0) for name in names] for each in found]
    return np.array(excess, dtype=float).reshape(len(trials), len(names))
