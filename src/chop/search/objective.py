"""Objectives and constraints of a search: numbers by name that a measure returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from chop.errors import ChopError, ConfigError, check_known, did_you_mean
from chop.search.space import Config

Direction = Literal["maximize", "minimize"]

Report = Callable[[int, float], None]
"""Called by a measure as `report(step, value)` with its first goal so far; may raise Pruned."""

Measure = Callable[[Config, Report], Mapping[str, float]]
"""Measures one configuration: numbers by name, each goal's among them."""


ROUNDING = 1e-9
"""Relative tolerance of a bound: sums of bits are rounded."""


class Pruned(ChopError):  # noqa: N818 (Optuna's name for a trial that is not worth finishing)
    """Pruned trial: raised by `report`; a measure lets it pass."""


class NotANumberError(ConfigError):
    """A measure returned NaN, or what nothing can be better than: the trial fails, and no other."""


@dataclass(frozen=True)
class Goal:
    """Objective: a measured number to maximize or minimize.

    Attributes:
        name: key of the number in what a measure returns.
        direction: "maximize" (default) or "minimize".
    """

    name: str
    direction: Direction = "maximize"

    def __post_init__(self) -> None:
        _check_direction("goal", self.name, self.direction)

    def loss(self, value: float) -> float:
        """The number to minimize: `value`, negated where the direction is "maximize"."""
        return -value if self.direction == "maximize" else value


@dataclass(frozen=True)
class Constraint:
    """Constraint: a bound on a measured number.

    Attributes:
        name: key of the number in what a measure returns.
        bound: in the number's own unit; met up to rounding (1e-9 of it).
        direction: "minimize" (default): `bound` is the most that the number may be; "maximize":
            the least.
    """

    name: str
    bound: float
    direction: Direction = "minimize"

    def __post_init__(self) -> None:
        _check_direction("constraint", self.name, self.direction)
        if not math.isfinite(self.bound):
            raise ConfigError(f"constraint '{self.name}': expected a number, got {self.bound}.")

    def excess(self, value: float) -> float:
        """Violation: how far `value` is beyond the bound and its rounding; at most 0 within it."""
        beyond = self.bound - value if self.direction == "maximize" else value - self.bound
        return beyond - ROUNDING * abs(self.bound)


Goals = Sequence[Goal | Constraint]


def _check_direction(kind: str, name: str, direction: str) -> None:
    if direction not in get_args(Direction):
        nearest = did_you_mean(direction, get_args(Direction))
        raise ConfigError(f"{kind} '{name}': direction '{direction}': {nearest}")


def select_objectives(goals: Goals) -> tuple[Goal, ...]:
    """The objectives among the goals, at least one.

    Raises:
        ConfigError: there is none, or two objectives share a name.
    """
    found = tuple(goal for goal in goals if isinstance(goal, Goal))
    names = [goal.name for goal in found]
    if not found:
        raise ConfigError("goals: expected at least one without a budget, an objective.")
    if len(set(names)) < len(names):
        raise ConfigError(f"goals: two objectives share a name: {', '.join(names)}.")
    return found


def select_constraints(goals: Goals) -> tuple[Constraint, ...]:
    """The constraints among the goals."""
    return tuple(goal for goal in goals if isinstance(goal, Constraint))


def named_goals(
    names: Iterable[str],
    budgets: Mapping[str, float],
    directions: Mapping[str, Direction],
    sizes: Collection[str],
) -> tuple[Goal | Constraint, ...]:
    """Objectives, then constraints, by the names that a problem has for them.

    Args:
        names: names of the objectives.
        budgets: bound of each constraint, by name.
        directions: name -> direction, of everything that the problem measures.
        sizes: names of what every model has some of.
    Raises:
        ConfigError: a name is unknown, or a budget is no number that what it bounds can have.
    """
    for where, given in (("goals", names), ("budgets", budgets)):
        for name in given:
            check_known(name, directions, f"{where}: unknown")
    for name, number in budgets.items():
        if name in sizes and not number > 0:
            raise ConfigError(f"budgets: {name}: got {number:g}, expected more than 0.")
        if name == "accuracy" and not 0 <= number <= 1:
            raise ConfigError(f"budgets: accuracy: got {number:g}, expected 0 to 1.")
    limits = [Constraint(name, bound, directions[name]) for name, bound in budgets.items()]
    return (*(Goal(name, directions[name]) for name in names), *limits)


def goals_to_json(goals: Goals) -> list[list[Any]]:
    """Goals as studies store them: [name, direction, bound], the bound of an objective None."""
    return [[g.name, g.direction, g.bound if isinstance(g, Constraint) else None] for g in goals]


def goals_from_json(stored: Iterable[Sequence[Any]]) -> tuple[Goal | Constraint, ...]:
    """The inverse of `goals_to_json`."""
    return tuple(
        Goal(name, direction) if bound is None else Constraint(name, bound, direction)
        for name, direction, bound in stored
    )


def check_values(values: Mapping[str, float], goals: Goals) -> dict[str, float]:
    """What a measure returned, as plain floats, every goal's number among them.

    NaN is not a number to compare: the trial fails rather than being the best one later, and so
    does one with an infinite profit. An infinite loss is one.

    Raises:
        ConfigError: it is no mapping of numbers by name, or a goal's number is missing.
        NotANumberError: a goal's number is NaN, or an objective's is the infinite one that nothing
            is better than.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"the measure returned {values!r}, expected numbers by name.")
    try:
        numbers = {name: float(value) for name, value in values.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"the measure returned {dict(values)}, expected numbers.") from error
    for goal in goals:
        if goal.name not in numbers:
            nearest = did_you_mean(goal.name, numbers)
            raise ConfigError(f"the measure returned no '{goal.name}': {nearest}")
        if math.isnan(numbers[goal.name]):
            raise NotANumberError(f"the measure returned NaN for '{goal.name}'.")
        if isinstance(goal, Goal) and goal.loss(numbers[goal.name]) == -math.inf:
            raise NotANumberError(
                f"the measure returned {numbers[goal.name]} for '{goal.name}', to {goal.direction}."
            )
    return numbers
