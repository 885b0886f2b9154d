"""Bit allocation without a search, by an exact integer program of least predicted loss increase."""

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

MAX_COMBINATIONS = 10_000
"""Maximum number of option combinations in a group of coupled choices."""
MARGINS = (0.0, 1e-6, 1e-3, 0.01, 0.03, 0.1)
"""Budget shares held back, tried in turn.

A solver meets limits up to a tolerance, and circuit costs of neighbors do not add up exactly.
"""
UNSURE = 0.05
"""Relative uncertainty of the least circuit cost, whose parts are assumed to add up."""
WORST = 1e3
"""Replacement for a non-finite loss increase, in multiples of the largest finite one."""


class Allocation:
    """Integer program of a problem under constraints on costs.

    Choices whose costs do not add up (both operands of a layer under `bit_operations`, layers that
    share a parameter) form a group, which is optimized over all combinations. If a group has more
    than `MAX_COMBINATIONS` combinations, budgets are not checked and `solve` returns None.

    Args:
        problem: problem with the choices.
        goals: goals. Constraints on costs become limits; others are ignored.
        fold: fold of the circuit. None uses the one with the fewest parts.
    Raises:
        ConfigError: if a budget cannot be met by any configuration.
    """

    def __init__(self, problem: PrecisionProblem, goals: Goals, fold: str | None = None) -> None:
        self.problem, options = problem, tuple(problem.options)
        self.limits = [limit for limit in select_constraints(goals) if limit.name in COSTS]
        groups = _groups(problem, [limit.name for limit in self.limits])
        counts = [len(options) ** len(group) for group in groups]
        self._combinations: list[list[dict[str, str]]] = []
        if max(counts) > MAX_COMBINATIONS:
            return
        self._first = problem.base(fold)
        self._base = self._costs({})
        added: list[list[np.ndarray]] = []
        for group in groups:
            taken = itertools.product(options, repeat=len(group))
            combinations = {
                options: self._added_by(dict(zip(group, options, strict=True))) for options in taken
            }
            feasible = {
                options: costs for options, costs in combinations.items() if costs is not None
            }
            self._combinations.append([dict(zip(group, way, strict=True)) for way in feasible])
            added.append(list(feasible.values()))
        self._added = np.full((len(self.limits), len(groups), max(map(len, added))), np.inf)
        for i, columns in enumerate(added):
            self._added[:, i, : len(columns)] = np.stack(columns, 1)
        if list(map(len, added)) == counts:
            self._check()

    def _added_by(self, combination: Config) -> np.ndarray | None:
        """Returns costs (limits,) that a combination adds to the base; None without a circuit."""
        if not self.limits:
            return np.zeros(0)
        try:
            costs = self._costs(combination)
        except NotANumberError:
            return None
        added: np.ndarray = costs - self._base
        return added

    def _costs(self, changed: Config) -> np.ndarray:
        """Returns costs (limits,) of the base with some changes, signed for minimization."""
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
                    f"budgets: {limit.name}={limit.bound:g} cannot be met: with the {end} "
                    f"formats in all layers it is {_as_minimized(limit, least):.4g}, "
                    f"{abs(limit.bound - _as_minimized(limit, least)):.4g} beyond the budget."
                )

    def solve(self, loss_increases: LossIncreases) -> Config | None:
        """Returns the configuration of least total loss increase within the limits.

        Args:
            loss_increases: loss increase of each choice and option by itself, assumed to add up.
        Returns: the configuration, or None if no configuration meets all limits, or no loss
            increase is finite.
        """
        known = [increase for increase in loss_increases.values() if math.isfinite(increase)]
        if not known or not self._combinations:
            return None
        worst = WORST * max(*known, 1e-12)
        worth = np.zeros((len(self._combinations), max(map(len, self._combinations))))
        for row, group in zip(worth, self._combinations, strict=True):
            for place, combination in enumerate(group):
                alone = [loss_increases[pair] for pair in combination.items()]
                row[place] = -sum(x if math.isfinite(x) else worst for x in alone)
        return self._best(worth)

    def _best(self, worth: np.ndarray) -> Config | None:
        budgets = np.array([_as_minimized(limit, limit.bound) for limit in self.limits])
        for margin in MARGINS:
            most = budgets - self._base - margin * abs(budgets)
            limits = list(zip(self._added, most, strict=True))
            places = best_sum(worth, list(map(len, self._combinations)), limits)
            if places is None:
                break
            config = dict(self._first)
            for group, place in zip(self._combinations, places, strict=True):
                config |= group[place]
            with contextlib.suppress(NotANumberError):
                if np.all(self._costs(config) <= budgets + ROUNDING * abs(budgets)):
                    return config
        return None


def _groups(problem: PrecisionProblem, costs: Sequence[str]) -> list[list[str]]:
    """Groups the choices so that the costs add up between groups."""
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
    """Converts a number to or from its form for minimization."""
    return value if limit.direction == "minimize" else -value
