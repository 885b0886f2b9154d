"""What a search found: its trials, the best within the budgets, and the Pareto front."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nsmallest
from operator import le

from chop.search.objective import Goal, objectives_of
from chop.search.space import Config

OUTCOMES = {
    "measured": "a configuration and its values",
    "pruned": "stopped by the pruner",
    "failed": "the measure raised an error",
    "cached": "told again what an earlier trial of the same configuration gave",
    "impossible": "a combination that cannot be; no work was done",
    "running": "being measured, or left by a worker that is gone",
    "waiting": "queued, not begun",
}
"""How a trial ended, and what that means."""


@dataclass(frozen=True)
class TrialRecord:
    """One trial.

    Attributes:
        number: in the study.
        outcome: how it ended, from `OUTCOMES`.
        config: what it is of.
        key: of the configuration; empty where the trial measures nothing.
        values: all that was measured, by name.
        seconds: that its measure took; None while it runs, or where nothing was measured.
        note: why it ended so, where there is more to say.
        begun: how often: once more for each kill.
    """

    number: int
    outcome: str
    config: Config = field(default_factory=dict)
    key: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    note: str = ""
    begun: int = 1


@dataclass(frozen=True)
class Result:
    """All trials of a search, and what follows from them.

    Attributes:
        goals: what was searched for, and within which budgets.
        trials: in the order in which they were begun.
    """

    goals: tuple[Goal, ...]
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
    def _objectives(self) -> tuple[Goal, ...]:
        return objectives_of(self.goals)

    @cached_property
    def _constraints(self) -> list[tuple[Goal, float]]:
        """Each goal with a budget, and the size of that."""
        return [(goal, abs(goal.budget or 0) or 1) for goal in self.goals if goal.is_constraint]

    def excess(self, trial: TrialRecord) -> float:
        """How far a trial is beyond the budgets, in shares of them: 0 when it keeps within all."""
        total = 0.0
        for goal, size in self._constraints:
            total += max(goal.excess(trial.values[goal.name]), 0.0) / size
        return total

    def losses(self, trial: TrialRecord) -> tuple[float, ...]:
        """The numbers to make small, one per objective."""
        return tuple([goal.loss(trial.values[goal.name]) for goal in self._objectives])

    def _place(self, trial: TrialRecord) -> tuple[float, tuple[float, ...], int]:
        """Sorts trials: within the budgets by their losses, beyond them by their excess alone."""
        excess = self.excess(trial)
        return excess, () if excess else self.losses(trial), trial.number

    @cached_property
    def feasible(self) -> list[TrialRecord]:
        """The measured trials within the budgets."""
        return [trial for trial in self.measured if self.excess(trial) == 0]

    @cached_property
    def front(self) -> list[TrialRecord]:
        """The trials within the budgets that no other beats in every objective (Pareto front).

        Sorted by the first objective; with one objective, the best alone. Of trials that are
        equal in every objective the first stands.
        """
        return self._front_of(self.feasible)

    def _front_of(self, trials: Iterable[TrialRecord]) -> list[TrialRecord]:
        """Source: Kung, Luccio and Preparata, On Finding the Maxima of a Set of Vectors, 1975: in
        order of the first loss, a vector is beaten by one that came before or by none."""
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
        """The best trial within the budgets, by the first objective; None while there is none."""
        return self.front[0] if self.front else None

    @cached_property
    def ranked(self) -> list[TrialRecord]:
        """Every measured trial: fronts within the budgets first, then by excess."""
        return self.top(len(self.measured))

    def top(self, count: int) -> list[TrialRecord]:
        """The first `count` of `ranked`, at less cost."""
        if len(self._objectives) == 1:
            return nsmallest(count, self.measured, key=self._place)
        found: list[TrialRecord] = []
        rest = self.feasible
        while rest and len(found) < count:
            front = self._front_of(rest)
            found += front
            taken = {trial.number for trial in front}
            rest = [trial for trial in rest if trial.number not in taken]
        beyond = [trial for trial in self.measured if self.excess(trial) > 0]
        return [*found, *sorted(beyond, key=self._place)][:count]

    def best_so_far(self) -> list[tuple[int, float]]:
        """(configurations begun, best value of the first objective within the budgets).

        Those that a pruner stopped or an error ended count as begun.
        """
        goal = self._objectives[0]
        points: list[tuple[int, float]] = []
        best = float("inf")
        ended = (t for t in self.trials if t.outcome in ("measured", "pruned", "failed"))
        for count, trial in enumerate(ended, start=1):
            if trial.outcome == "measured" and self.excess(trial) == 0:
                best = min(best, goal.loss(trial.values[goal.name]))
            if best < float("inf"):
                points.append((count, goal.loss(best)))
        return points
