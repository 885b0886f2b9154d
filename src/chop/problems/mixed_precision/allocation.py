"""Bit allocation without a search: exact integer program of least predicted loss increase."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Sequence

import numpy as np

from chop.errors import ConfigError
from chop.problems.mixed_precision.costs import COSTS
from chop.problems.mixed_precision.fisher import LossIncreases
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.search.objective import ROUNDING, Constraint, Goals, NotANumberError, select_constraints
from chop.search.samplers.knapsack import best_sum
from chop.search.space import Config

MOST_WAYS = 10_000
"""Of taking the options of choices whose costs do not add up."""
MARGINS = (0.0, 1e-6, 1e-3, 0.01, 0.03, 0.1)
"""Shares of a budget that are kept free, in turn: a solver meets limits up to a tolerance, and what
neighbors take of a circuit does not quite add up."""
UNSURE = 0.05
"""Of the least cost of a circuit, where parts are taken to add up."""
WORST = 1e3
"""A loss increase that is no number counts as so many times the largest that is one."""


class Allocation:
    """Integer program of a problem under constraints on costs.

    Choices whose costs do not add up (both operands of a layer under `bit_operations`, layers that
    share a parameter) are weighed together, in every combination; where one group of them has more
    than `MOST_WAYS`, nothing is checked and nothing found.

    Args:
        problem: what can be chosen.
        goals: constraints on costs are the limits; others are left aside.
        fold: of the problem's circuit; None takes the one of fewest parts.
    Raises:
        ConfigError: a budget cannot be kept, whatever is chosen.
    """

    def __init__(self, problem: PrecisionProblem, goals: Goals, fold: str | None = None) -> None:
        self.problem, options = problem, tuple(problem.options)
        self.limits = [limit for limit in select_constraints(goals) if limit.name in COSTS]
        groups = _groups(problem, [limit.name for limit in self.limits])
        counts = [len(options) ** len(group) for group in groups]
        self._ways: list[list[dict[str, str]]] = []
        if max(counts) > MOST_WAYS:
            return
        self._first = problem.base(fold)
        self._base = self._costs({})
        added: list[list[np.ndarray]] = []
        for group in groups:
            taken = itertools.product(options, repeat=len(group))
            ways = {way: self._added_by(dict(zip(group, way, strict=True))) for way in taken}
            kept = {way: costs for way, costs in ways.items() if costs is not None}
            self._ways.append([dict(zip(group, way, strict=True)) for way in kept])
            added.append(list(kept.values()))
        self._added = np.full((len(self.limits), len(groups), max(map(len, added))), np.inf)
        for i, columns in enumerate(added):
            self._added[:, i, : len(columns)] = np.stack(columns, 1)
        if list(map(len, added)) == counts:
            self._check()

    def _added_by(self, way: Config) -> np.ndarray | None:
        """(limits,): what a way adds to the costs of the base; None where it has no circuit."""
        if not self.limits:
            return np.zeros(0)
        try:
            costs = self._costs(way)
        except NotANumberError:
            return None
        added: np.ndarray = costs - self._base
        return added

    def _costs(self, changed: Config) -> np.ndarray:
        """(limits,): the costs of the base but for some choices, turned to be made small."""
        if not self.limits:
            return np.zeros(0)
        costs = self.problem.compute_costs({**self._first, **changed})
        return np.array([_as_minimized(limit, costs[limit.name]) for limit in self.limits])

    def _check(self) -> None:
        for limit, least in zip(self.limits, self._base + self._added.min(2).sum(1), strict=True):
            sure = 1 - UNSURE * COSTS[limit.name].is_of_circuit
            if limit.excess(_as_minimized(limit, least * sure)) > 0:
                end = "smallest" if limit.direction == "minimize" else "largest"
                raise ConfigError(
                    f"budgets: {limit.name}={limit.bound:g} cannot be kept: with the {end} "
                    f"of the formats in every layer it is {_as_minimized(limit, least):.4g}, "
                    f"{abs(limit.bound - _as_minimized(limit, least)):.4g} beyond it."
                )

    def solve(self, loss_increases: LossIncreases) -> Config | None:
        """The configuration of least total loss increase within the limits.

        Args:
            loss_increases: of each choice and option alone; they are taken to add up.
        Returns: None where nothing keeps within all limits, or no loss increase is a number.
        """
        known = [increase for increase in loss_increases.values() if math.isfinite(increase)]
        if not known or not self._ways:
            return None
        worst = WORST * max(*known, 1e-12)
        worth = np.zeros((len(self._ways), max(map(len, self._ways))))
        for row, ways in zip(worth, self._ways, strict=True):
            for place, way in enumerate(ways):
                alone = [loss_increases[pair] for pair in way.items()]
                row[place] = -sum(x if math.isfinite(x) else worst for x in alone)
        return self._best(worth)

    def _best(self, worth: np.ndarray) -> Config | None:
        budgets = np.array([_as_minimized(limit, limit.bound) for limit in self.limits])
        for margin in MARGINS:
            most = budgets - self._base - margin * abs(budgets)
            limits = list(zip(self._added, most, strict=True))
            places = best_sum(worth, list(map(len, self._ways)), limits)
            if places is None:
                break
            config = dict(self._first)
            for ways, place in zip(self._ways, places, strict=True):
                config |= ways[place]
            with contextlib.suppress(NotANumberError):
                if np.all(self._costs(config) <= budgets + ROUNDING * abs(budgets)):
                    return config
        return None


def _groups(problem: PrecisionProblem, costs: Sequence[str]) -> list[list[str]]:
    """The choices in groups: only between groups do these costs add up."""
    rounds = {
        name: {(x, operand) for x, own in problem.rounded(name).items() for operand in own}
        for name in problem.targets
    }
    groups = [{name} for name in rounds]
    for tie in problem.costs.ties(costs):
        joined = [group for group in groups if any(rounds[name] & tie for name in group)]
        groups = [group for group in groups if group not in joined]
        groups += [set().union(*joined)] if joined else []
    return [[name for name in rounds if name in group] for group in groups]


def _as_minimized(limit: Constraint, value: float) -> float:
    """A number that is to be small, and back."""
    return value if limit.direction == "minimize" else -value
