"""Result of a search: trial records, the best feasible trial, the Pareto front."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nsmallest
from html import escape
from operator import le
from typing import Any

from chop.base.displayed import Displayed
from chop.base.tables import html_table, text_table
from chop.search.objective import Constraint, Goal, select_constraints, select_objectives
from chop.search.space import Config

MAX_DISPLAYED = 10
"""Maximum number of displayed trials."""
OUTCOMES = {
    "measured": "a configuration and its values",
    "pruned": "stopped by the pruner",
    "failed": "the objective function raised an error or returned no number for a goal",
    "cached": "duplicate with the values of an earlier trial of the same configuration",
    "infeasible": "a combination that the space excludes; nothing was measured",
    "running": "being measured, or abandoned by a dead worker",
    "waiting": "queued, not started",
}
"""Outcome of a trial -> its meaning."""


@dataclass(frozen=True)
class TrialRecord:
    """Trial record: one configuration, its outcome and its values.

    Attributes:
        number: number in the study, from 0.
        outcome: one of `OUTCOMES`.
        config: choice -> text of the selected option.
        key: hash of the configuration. Empty if the trial has no measurement.
        values: measured numbers by name; empty unless the outcome is "measured" or "cached".
        seconds: duration of the measurement. None while running, or without a measurement.
        note: reason of the outcome: an error, a rule, or the trial that a duplicate repeats.
        begun: number of attempts: 1, and one more for each kill.
    """

    number: int
    outcome: str
    config: Config = field(default_factory=dict)
    key: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    note: str = ""
    begun: int = 1


@dataclass(frozen=True, repr=False)
class Result(Displayed):
    """Trials of a search, ranked by its objectives and constraints.

    Attributes:
        goals: objectives and constraints.
        trials: trials in starting order.
    """

    goals: tuple[Goal | Constraint, ...]
    trials: tuple[TrialRecord, ...]

    @cached_property
    def measured(self) -> list[TrialRecord]:
        """Trials with values; each configuration occurs once."""
        return [trial for trial in self.trials if trial.outcome == "measured"]

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of trials by outcome, in the order of `OUTCOMES`."""
        counts = Counter(trial.outcome for trial in self.trials)
        return {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]}

    @cached_property
    def failed(self) -> list[TrialRecord]:
        """Failed trials; their notes have the reasons."""
        return [trial for trial in self.trials if trial.outcome == "failed"]

    @property
    def why_nothing(self) -> str:
        """Explanation why no trial has values: counts by outcome, and the first reason."""
        ends = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        if set(self.counts) == {"infeasible"}:
            ends += (
                ": the model allows none of the drawn combinations of values; change the values "
                "of the space, or measure more trials"
            )
        excluded = [each for each in self.trials if each.outcome == "infeasible" and each.note]
        explained = self.failed or excluded
        first = f"; trial {explained[0].number}: {explained[0].note}" if explained else "."
        return f"nothing was measured: {ends or 'no trial'}{first}"

    @cached_property
    def _objectives(self) -> tuple[Goal, ...]:
        return select_objectives(self.goals)

    @cached_property
    def _constraints(self) -> list[tuple[Constraint, float]]:
        """Each constraint with the magnitude of its bound."""
        return [(each, abs(each.bound) or 1) for each in select_constraints(self.goals)]

    def excess(self, trial: TrialRecord) -> float:
        """Returns the constraint violation: sum of relative excesses, 0 if feasible."""
        total = 0.0
        for constraint, size in self._constraints:
            total += max(constraint.excess(trial.values[constraint.name]), 0.0) / size
        return total

    def losses(self, trial: TrialRecord) -> tuple[float, ...]:
        """Returns the objective values to minimize, one per objective."""
        return tuple([goal.loss(trial.values[goal.name]) for goal in self._objectives])

    def _place(self, trial: TrialRecord) -> tuple[float, tuple[float, ...], int]:
        """Returns a sort key: feasible trials by losses, infeasible ones by violation."""
        excess = self.excess(trial)
        # Losses do not rank infeasible trials, because their violation comes first.
        return excess, () if excess else self.losses(trial), trial.number

    @cached_property
    def feasible(self) -> list[TrialRecord]:
        """Measured trials that meet all constraints."""
        return [trial for trial in self.measured if self.excess(trial) == 0]

    @cached_property
    def front(self) -> list[TrialRecord]:
        """Pareto front: feasible trials that no other trial dominates.

        Sorted by the first objective. With one objective, only the best trial. Among trials with
        equal objectives, the first one counts.
        """
        return self._compute_front(self.feasible)

    def _compute_front(self, trials: Iterable[TrialRecord]) -> list[TrialRecord]:
        """Returns the Pareto front by a sweep in order of the first loss.

        Source: Kung, Luccio and Preparata, On Finding the Maxima of a Set of Vectors, 1975.
        """
        front: list[TrialRecord] = []
        losses: list[tuple[float, ...]] = []
        # In this order a trial can only be dominated by an earlier one, so the front never shrinks.
        for trial in sorted(trials, key=self._place):
            mine = self.losses(trial)
            if not any(all(map(le, other, mine)) for other in losses):
                front.append(trial)
                losses.append(mine)
        return front

    @property
    def best(self) -> TrialRecord | None:
        """Best feasible trial by the first objective, or None."""
        return self.front[0] if self.front else None

    @cached_property
    def ranked(self) -> list[TrialRecord]:
        """Measured trials by Pareto front, followed by infeasible trials by violation."""
        return self.top(len(self.measured))

    def _without_display(self) -> str:
        """Returns the best trials as a table."""
        return text_table(self._ends, self._best_rows()).rstrip() or self._ends

    def _repr_html_(self) -> str | None:
        html = super()._repr_html_()
        return html or f"<p>{escape(self._ends)}</p>{html_table(self._best_rows())}"

    @property
    def _ends(self) -> str:
        """Number of trials by outcome, as text."""
        ends = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        return f"{len(self.trials)} trial{'' if len(self.trials) == 1 else 's'}: {ends or 'none'}"

    def _best_rows(self) -> list[dict[str, Any]]:
        return [
            {
                "trial": trial.number,
                **{name: trial.values[name] for name in dict.fromkeys(g.name for g in self.goals)},
                "feasible": "yes" if self.excess(trial) == 0 else "no",
                "configuration": ", ".join(f"{k}: {v}" for k, v in trial.config.items()),
            }
            for trial in self.top(MAX_DISPLAYED)
        ]

    def top(self, count: int) -> list[TrialRecord]:
        """Returns the first `count` trials of `ranked`, at lower cost."""
        if len(self._objectives) == 1:
            return nsmallest(count, self.measured, key=self._place)
        # Nondominated sorting: the next front is the front of the trials that remain.
        top: list[TrialRecord] = []
        rest = self.feasible
        while rest and len(top) < count:
            front = self._compute_front(rest)
            top += front
            taken = {trial.number for trial in front}
            rest = [trial for trial in rest if trial.number not in taken]
        beyond = [trial for trial in self.measured if self.excess(trial) > 0]
        return [*top, *sorted(beyond, key=self._place)][:count]

    def best_so_far(self) -> list[tuple[int, float]]:
        """Best-so-far curve: (finished trials, best feasible value of the first objective).

        Measured, pruned and failed trials count as finished.
        """
        return [(count, best) for count, _, best in self._bests()]

    def best_by_trial(self) -> list[tuple[int, float]]:
        """Best-so-far curve by trial number: (number, best value up to this trial)."""
        return [(number, best) for _, number, best in self._bests()]

    def _bests(self) -> Iterator[tuple[int, int, float]]:
        """Yields finished trials, number of the last one, and best trial, once there is one."""
        goal = self._objectives[0]
        best = float("inf")
        ended = (t for t in self.trials if t.outcome in ("measured", "pruned", "failed"))
        for count, trial in enumerate(ended, start=1):
            if trial.outcome == "measured" and self.excess(trial) == 0:
                best = min(best, goal.loss(trial.values[goal.name]))
            if best < float("inf"):
                yield count, trial.number, goal.loss(best)
