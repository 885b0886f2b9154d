"""Trial history of a study as arrays, the complete state of the sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

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
"""Integer encoding of a configuration: index of the selected option for each choice."""


APART = 1.5
"""Position of an inactive choice on the line of its options, beyond all of them."""


class Coding:
    """Integer encoding of configurations, and back.

    Attributes:
        counts: number of options of each choice.
        costs: (D, K), or None if no choice has costs.
        places: positions of each choice's options in [0, 1], in order of cost or, without costs, in
            the given order. Conditional spaces have one more position for inactive choices.
        finished: finished trials at the start of each study: their number, the last one, and their
            history.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.counts = [len(choice.texts) for choice in space.choices]
        self.index = [{t: i for i, t in enumerate(c.texts)} for c in space.choices]
        self.is_conditional = space.active is not all_active
        self.is_plain = space.canonical is as_it_is and not self.is_conditional
        self.costs = _costs(space)
        self.ranks = [
            # The second argsort inverts the first, which gives the rank of each option.
            np.argsort(np.argsort([(c.cost or {}).get(t, 0.0) for t in c.texts], kind="stable"))
            for c in space.choices
        ]
        self.places = [
            np.append(rank / max(1, len(rank) - 1), [APART] * self.is_conditional)
            for rank in self.ranks
        ]
        self.finished: WeakKeyDictionary[Study, tuple[int, FrozenTrial, History]] = (
            WeakKeyDictionary()
        )
        self._known: dict[int, tuple[FrozenTrial, Code | None]] = {}

    def config(self, code: Code) -> Config:
        """Returns the configuration of a code."""
        taken = zip(self.space.choices, code, strict=True)
        return {choice.name: choice.texts[place] for choice, place in taken}

    def code(self, params: Mapping[str, Any]) -> Code | None:
        """Returns the canonical code of a trial's parameters; None if a choice is missing."""
        code = self._plain(params)
        if code is None or self.is_plain:
            return code
        return self._plain(self.space.folded(self.config(code)))

    def active(self, codes: Codes) -> NDArray[np.bool_]:
        """Returns the mask of active choices of candidates (C, D): (C, D)."""
        if not self.is_conditional:
            return np.ones(codes.shape, dtype=bool)
        values = (self.space.values(self.config(tuple(row))) for row in codes.tolist())
        live = [self.space.active(each) for each in values]
        names = list(self.space.by_name)
        return np.array([[name in each for name in names] for each in live]).reshape(codes.shape)

    def marked(self, codes: Codes) -> Codes:
        """Returns candidates (C, D) for surrogates, with inactive as an additional option."""
        return np.where(self.active(codes), codes, self.counts)

    def get_code(self, trial: FrozenTrial) -> Code | None:
        """Returns the code of a trial, cached once the trial has finished."""
        known, code = self._known.get(trial.number, (None, None))
        # Optuna replaces the object of a running trial at each change.
        if known is not trial:
            code = self.code(trial_params(trial))
            if trial.state.is_finished():
                self._known[trial.number] = (trial, code)
        return code

    def _plain(self, params: Mapping[str, Any]) -> Code | None:
        indices: list[Any] = []
        for choice, index in zip(self.space.choices, self.index, strict=True):
            value = params.get(choice.name)
            indices.append(index.get(value, -1) if isinstance(value, str) else value)
        known = all(isinstance(i, int) and i >= 0 for i in indices)
        return tuple(indices) if known else None

    def is_feasible(self, code: Code) -> bool:
        """Returns whether no rule of the space excludes the configuration."""
        return self.space.is_feasible(self.config(code))

    def uniform(self, share: float) -> Code:
        """Returns the options at a cost quantile: 0 for the cheapest, 1 for the dearest."""
        return tuple(
            int(np.flatnonzero(rank == round(share * (len(rank) - 1)))[0]) for rank in self.ranks
        )


@lru_cache(maxsize=4)
def get_coding(space: SearchSpace) -> Coding:
    """Returns the cached coding of a space."""
    return Coding(space)


def _costs(space: SearchSpace) -> Array | None:
    if all(choice.cost is None for choice in space.choices):
        return None
    most = max(len(choice.texts) for choice in space.choices) + (space.active is not all_active)
    costs = np.zeros((len(space.choices), most))
    for row, choice in zip(costs, space.choices, strict=True):
        row[: len(choice.texts)] = [(choice.cost or {}).get(text, 0.0) for text in choice.texts]
    return costs


@dataclass(frozen=True)
class History:
    """Trials of a study as arrays.

    Attributes:
        measured: (N, D) codes of trials with values, each configuration once.
        values: (N, J) objectives, signed so that more is better.
        limits: names of the constraints, sorted.
        excess: (N, B) violation of each constraint, feasible at or below 0.
        rows: codes of `measured`.
        taken: codes of all proposed configurations, with any outcome.
        dropped: codes of pruned trials.
        pending: codes of running and waiting trials.
        undecided: number of earlier running trials without a configuration.
    """

    measured: Codes
    values: Array
    limits: tuple[str, ...] = ()
    excess: Array = field(default_factory=lambda: np.empty((0, 0)))
    rows: frozenset[Code] = frozenset()
    taken: frozenset[Code] = frozenset()
    dropped: tuple[Code, ...] = ()
    pending: tuple[Code, ...] = ()
    undecided: int = 0


def read_history(study: Study, coding: Coding, number: int) -> History:
    """Reads all trials except number `number`; each configuration once.

    Finished trials at the start of the study are read once and stay in `coding`, so that a
    proposal costs the same after thousands of trials.
    """
    signs = np.array([1.0 if d.name == "MAXIMIZE" else -1.0 for d in study.directions])
    trials = cached_trials(study)
    count, last, history = coding.finished.get(study, (0, None, None))
    if history is None or count > min(number, len(trials)) or trials[count - 1] is not last:
        count = 0
        history = History(np.empty((0, len(coding.counts)), np.int64), np.empty((0, len(signs))))
    first = list(takewhile(lambda trial: trial.state.is_finished(), trials[count:number]))
    if first:
        count, history = count + len(first), _extend(history, first, coding, signs)
        coding.finished[study] = count, first[-1], history
    rest = [trial for trial in trials[count:] if trial.number != number]
    history = _extend(history, rest, coding, signs)
    # A concurrent trial without a configuration yet will propose one of its own.
    early = (t for t in rest if t.number < number and t.state.name == "RUNNING")
    return replace(history, undecided=sum(_code(t, coding) is None for t in early))


def _extend(
    history: History, trials: Sequence[FrozenTrial], coding: Coding, signs: Array
) -> History:
    """Returns a history with further trials."""
    taken, dropped, pending = {*history.taken}, [*history.dropped], [*history.pending]
    rows: dict[Code, FrozenTrial] = {}
    for trial in trials:
        code, state = _code(trial, coding), trial.state.name
        if code is None:
            continue
        if state == "COMPLETE" and code not in history.rows:
            # Repeats of a configuration have the values of its first trial.
            rows.setdefault(code, trial)
        elif state in ("RUNNING", "WAITING"):
            pending.append(code)
        # A trial that was pruned without a report is infeasible and has no measured values.
        elif state == "PRUNED" and trial.intermediate_values and code not in taken:
            dropped.append(code)
        taken.add(code)
    codes = np.array(list(rows), dtype=np.int64).reshape(len(rows), len(coding.counts))
    values = signs * np.array([t.values for t in rows.values()]).reshape(len(rows), len(signs))
    limits, excess = _excess(history, [get_excess(trial) for trial in rows.values()])
    return History(
        measured=np.concatenate([history.measured, codes]),
        values=np.concatenate([history.values, values]),
        limits=limits,
        excess=excess,
        rows=history.rows.union(rows),
        taken=frozenset(taken),
        dropped=tuple(dropped),
        pending=tuple(pending),
    )


def _code(trial: FrozenTrial, coding: Coding) -> Code | None:
    """Returns the code of a trial of this study's own, or None."""
    is_elsewhere = trial.user_attrs.get("outcome") == CLAIMED_ELSEWHERE
    return None if is_elsewhere else coding.get_code(trial)


def _excess(
    history: History, excesses: Sequence[Mapping[str, float]]
) -> tuple[tuple[str, ...], Array]:
    """Returns the names (B) and violations (N, B) of a history with further trials.

    A constraint that a trial does not report counts as met.
    """
    limits = tuple(sorted({*history.limits, *(name for each in excesses for name in each)}))
    earlier = np.zeros((len(history.measured), len(limits)))
    earlier[:, [limits.index(name) for name in history.limits]] = history.excess
    more = [[each.get(name, 0.0) for name in limits] for each in excesses]
    return limits, np.concatenate([earlier, np.array(more).reshape(len(excesses), len(limits))])
