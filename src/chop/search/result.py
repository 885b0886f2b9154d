"""What a search found: its trials, the best within the budgets, and the Pareto front."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from chop.search.measure import Goal, objectives_of
from chop.search.space import Config

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

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
class Tried:
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
    trials: tuple[Tried, ...]

    @cached_property
    def measured(self) -> list[Tried]:
        """The trials that gave values; no configuration is among them twice."""
        return [trial for trial in self.trials if trial.outcome == "measured"]

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many trials ended how, in the order of `OUTCOMES`."""
        found = Counter(trial.outcome for trial in self.trials)
        return {outcome: found[outcome] for outcome in OUTCOMES if found[outcome]}

    def excess(self, trial: Tried) -> float:
        """How far a trial is beyond the budgets, in shares of them: 0 when it keeps within all."""
        found = ((goal, goal.excess(trial.values[goal.name])) for goal in self.goals)
        return sum(excess / (abs(goal.budget or 0) or 1) for goal, excess in found if excess > 0)

    def losses(self, trial: Tried) -> tuple[float, ...]:
        """The numbers to make small, one per objective."""
        return tuple(goal.loss(trial.values[goal.name]) for goal in objectives_of(self.goals))

    @cached_property
    def feasible(self) -> list[Tried]:
        """The measured trials within the budgets."""
        return [trial for trial in self.measured if self.excess(trial) == 0]

    @cached_property
    def _fronts(self) -> list[list[Tried]]:
        return pareto_fronts(self.feasible, [self.losses(trial) for trial in self.feasible])

    @cached_property
    def front(self) -> list[Tried]:
        """The trials within the budgets that no other beats in every objective (Pareto front).

        Sorted by the first objective; with one objective, the best alone. Of trials that are
        equal in every objective the first stands.
        """
        return self._fronts[0] if self._fronts else []

    @property
    def best(self) -> Tried | None:
        """The best trial within the budgets, by the first objective; None while there is none."""
        return self.front[0] if self.front else None

    @cached_property
    def ranked(self) -> list[Tried]:
        """Every measured trial: fronts within the budgets first, then by excess."""
        within = [trial for front in self._fronts for trial in front]
        beyond = [trial for trial in self.measured if self.excess(trial) > 0]
        return within + sorted(beyond, key=self.excess)

    def best_so_far(self) -> list[tuple[int, float]]:
        """(configurations measured, best value of the first objective within the budgets)."""
        goal = objectives_of(self.goals)[0]
        points: list[tuple[int, float]] = []
        best = float("inf")
        for count, trial in enumerate(self.measured, start=1):
            if self.excess(trial) == 0:
                best = min(best, goal.loss(trial.values[goal.name]))
            if best < float("inf"):
                points.append((count, goal.loss(best)))
        return points


def pareto_fronts(trials: Sequence[Tried], losses: Sequence[Sequence[float]]) -> list[list[Tried]]:
    """The trials whose losses no other trial's are at most equal to; then those of the rest; ...

    Equal losses count once in a front, for the first of the trials. Each front is sorted by the
    first loss.

    Source: Zhang et al., An Efficient Approach to Nondominated Sorting, IEEE Trans. Evolutionary
    Computation 19(2), 2015, algorithm 3: in order of the first loss, each goes to the first front
    that does not beat it, which bisection finds.
    """
    fronts: list[list[int]] = []

    def is_free(front: list[int], i: int) -> bool:
        return not any(
            all(a <= b for a, b in zip(losses[j], losses[i], strict=True)) for j in front
        )

    for i in sorted(range(len(trials)), key=lambda i: (tuple(losses[i]), trials[i].number)):
        place = bisect_left(fronts, True, key=lambda front, i=i: is_free(front, i))
        if place == len(fronts):
            fronts.append([])
        fronts[place].append(i)
    return [[trials[i] for i in front] for front in fronts]


def outcome_of(trial: FrozenTrial) -> str:
    """How a trial of Optuna's ended, from `OUTCOMES`; "busy" where another worker has it."""
    plain = {"COMPLETE": "measured", "PRUNED": "pruned", "FAIL": "failed"}
    if trial.state.is_finished():
        return str(trial.user_attrs.get("outcome", plain[trial.state.name]))
    return trial.state.name.lower()
