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

SHOWN = 10
"""Trials that a result shows."""
OUTCOMES = {
    "measured": "a configuration and its values",
    "pruned": "stopped by the pruner",
    "failed": "the measure raised an error, or returned what is no number for a goal",
    "cached": "duplicate: has the values of an earlier trial of the same configuration",
    "infeasible": "a combination that the space excludes; nothing was measured",
    "running": "being measured, or left by a worker that is gone",
    "waiting": "queued, not begun",
}
"""Outcome of a trial -> its meaning."""


@dataclass(frozen=True)
class TrialRecord:
    """Trial record: one configuration, its outcome and its values.

    Attributes:
        number: place in the study, from 0.
        outcome: one of `OUTCOMES`.
        config: choice -> text of the option taken.
        key: hash of the configuration; empty where the trial measures nothing.
        values: measured numbers by name; empty unless the outcome is "measured" or "cached".
        seconds: duration of the measure; None while it runs, or where nothing was measured.
        note: reason of the outcome: an error, a rule, the trial that a duplicate repeats.
        begun: attempts: 1, and one more for each kill.
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
        trials: in the order in which they were begun.
    """

    goals: tuple[Goal | Constraint, ...]
    trials: tuple[TrialRecord, ...]

    @cached_property
    def measured(self) -> list[TrialRecord]:
        """The trials that gave values; no configuration is among them twice."""
        return [trial for trial in self.trials if trial.outcome == "measured"]

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many trials ended how, in the order of `OUTCOMES`."""
        found = Counter(trial.outcome for trial in self.trials)
        return {outcome: found[outcome] for outcome in OUTCOMES if found[outcome]}

    @cached_property
    def failed(self) -> list[TrialRecord]:
        """The trials that failed; their notes say why."""
        return [trial for trial in self.trials if trial.outcome == "failed"]

    @property
    def why_nothing(self) -> str:
        """Why no trial gave values: how the trials ended, and what the first failure was."""
        ends = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        first = f"; trial {self.failed[0].number}: {self.failed[0].note}" if self.failed else "."
        return f"nothing was measured: {ends or 'no trial'}{first}"

    @cached_property
    def _objectives(self) -> tuple[Goal, ...]:
        return select_objectives(self.goals)

    @cached_property
    def _constraints(self) -> list[tuple[Constraint, float]]:
        """Each constraint, and the size of its bound."""
        return [(each, abs(each.bound) or 1) for each in select_constraints(self.goals)]

    def excess(self, trial: TrialRecord) -> float:
        """Constraint violation: the sum of excesses as shares of the bounds; 0 if feasible."""
        total = 0.0
        for constraint, size in self._constraints:
            total += max(constraint.excess(trial.values[constraint.name]), 0.0) / size
        return total

    def losses(self, trial: TrialRecord) -> tuple[float, ...]:
        """Objective values to minimize, one per objective."""
        return tuple([goal.loss(trial.values[goal.name]) for goal in self._objectives])

    def _place(self, trial: TrialRecord) -> tuple[float, tuple[float, ...], int]:
        """Sort key: feasible trials by their losses, infeasible ones by their excess alone."""
        excess = self.excess(trial)
        return excess, () if excess else self.losses(trial), trial.number

    @cached_property
    def feasible(self) -> list[TrialRecord]:
        """The measured trials that meet all constraints."""
        return [trial for trial in self.measured if self.excess(trial) == 0]

    @cached_property
    def front(self) -> list[TrialRecord]:
        """Pareto front: the feasible trials that no other dominates.

        Sorted by the first objective; with one objective, the best alone. Of trials that are
        equal in every objective the first stands.
        """
        return self._compute_front(self.feasible)

    def _compute_front(self, trials: Iterable[TrialRecord]) -> list[TrialRecord]:
        """Source: Kung, Luccio and Preparata, On Finding the Maxima of a Set of Vectors, 1975: in
        order of the first loss, a vector is dominated by one that came before or by none."""
        found: list[TrialRecord] = []
        losses: list[tuple[float, ...]] = []
        for trial in sorted(trials, key=self._place):
            mine = self.losses(trial)
            if not any(all(map(le, other, mine)) for other in losses):
                found.append(trial)
                losses.append(mine)
        return found

    @property
    def best(self) -> TrialRecord | None:
        """The best feasible trial, by the first objective; None while there is none."""
        return self.front[0] if self.front else None

    @cached_property
    def ranked(self) -> list[TrialRecord]:
        """Every measured trial: by Pareto front, then the infeasible ones by excess."""
        return self.top(len(self.measured))

    def _without_display(self) -> str:
        """The best trials as a table."""
        return text_table(self._ends, self._best_rows()).rstrip() or self._ends

    def _repr_html_(self) -> str | None:
        shown = super()._repr_html_()
        return shown or f"<p>{escape(self._ends)}</p>{html_table(self._best_rows())}"

    @property
    def _ends(self) -> str:
        """How many trials ended how."""
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
            for trial in self.top(SHOWN)
        ]

    def top(self, count: int) -> list[TrialRecord]:
        """The first `count` of `ranked`, at less cost."""
        if len(self._objectives) == 1:
            return nsmallest(count, self.measured, key=self._place)
        found: list[TrialRecord] = []
        rest = self.feasible
        while rest and len(found) < count:
            front = self._compute_front(rest)
            found += front
            taken = {trial.number for trial in front}
            rest = [trial for trial in rest if trial.number not in taken]
        beyond = [trial for trial in self.measured if self.excess(trial) > 0]
        return [*found, *sorted(beyond, key=self._place)][:count]

    def best_so_far(self) -> list[tuple[int, float]]:
        """Best-so-far curve: (trials ended, best feasible value of the first objective).

        Measured, pruned and failed trials count.
        """
        return [(count, best) for count, _, best in self._bests()]

    def best_by_trial(self) -> list[tuple[int, float]]:
        """The same curve by trial number, as tables have it: (number, best until this trial)."""
        return [(number, best) for _, number, best in self._bests()]

    def _bests(self) -> Iterator[tuple[int, int, float]]:
        """Trials ended, number of the last of them, and the best, once there is one."""
        goal = self._objectives[0]
        best = float("inf")
        ended = (t for t in self.trials if t.outcome in ("measured", "pruned", "failed"))
        for count, trial in enumerate(ended, start=1):
            if trial.outcome == "measured" and self.excess(trial) == 0:
                best = min(best, goal.loss(trial.values[goal.name]))
            if best < float("inf"):
                yield count, trial.number, goal.loss(best)
