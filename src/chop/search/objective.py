"""What a trial gives: numbers by name, some of them goals, some of them under a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from chop.errors import ChopError, ConfigError, did_you_mean
from chop.search.space import Config

Direction = Literal["maximize", "minimize"]

Report = Callable[[int, float], None]
"""Called by a measure as `report(step, value)` with its first goal so far; may raise Pruned."""

Measure = Callable[[Config, Report], Mapping[str, float]]
"""Measures one configuration: numbers by name, each goal's among them."""


ROUNDING = 1e-9
"""The share of a budget by which it may be passed: sums of bits are rounded."""


class Pruned(ChopError):  # noqa: N818 (Optuna's name for a trial that is not worth finishing)
    """Raised by `report`: the trial is not worth finishing. A measure lets it pass."""


@dataclass(frozen=True)
class Goal:
    """A measured number to make large or small, or to keep within a budget.

    Attributes:
        name: of the number in what a measure returns.
        direction: "maximize" or "minimize".
        budget: makes the goal a constraint: the most that a number to minimise may be, the least
            that one to maximise may be, both up to rounding (1e-9 of the budget). None: the number
            is what the search is for.
    """

    name: str
    direction: Direction = "maximize"
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.direction not in ("maximize", "minimize"):
            nearest = did_you_mean(self.direction, ("maximize", "minimize"))
            raise ConfigError(f"goal '{self.name}': direction '{self.direction}': {nearest}")
        if self.budget is not None and not math.isfinite(self.budget):
            raise ConfigError(f"goal '{self.name}': budget: expected a number, got {self.budget}.")

    @property
    def is_constraint(self) -> bool:
        """True when the number only has to keep within its budget."""
        return self.budget is not None

    def excess(self, value: float) -> float:
        """How far `value` is beyond the budget and its rounding: at most 0 within it."""
        if self.budget is None:
            return 0.0
        beyond = self.budget - value if self.direction == "maximize" else value - self.budget
        return beyond - ROUNDING * abs(self.budget)

    def loss(self, value: float) -> float:
        """The number to make small: `value`, negated where it is to be large."""
        return -value if self.direction == "maximize" else value


def objectives_of(goals: tuple[Goal, ...]) -> tuple[Goal, ...]:
    """The goals without a budget, at least one.

    Raises:
        ConfigError: there is none, or two goals share a name and are both objectives.
    """
    found = tuple(goal for goal in goals if not goal.is_constraint)
    names = [goal.name for goal in found]
    if not found:
        raise ConfigError("goals: expected at least one without a budget to search for.")
    if len(set(names)) < len(names):
        raise ConfigError(f"goals: two objectives share a name: {', '.join(names)}.")
    return found


def check_values(values: Mapping[str, float], goals: tuple[Goal, ...]) -> dict[str, float]:
    """What a measure returned, as plain floats, every goal's number among them.

    NaN is not a number to compare: it is an error here rather than a best trial later.

    Raises:
        ConfigError: it is no mapping of numbers by name; a goal's number is missing or NaN.
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
            raise ConfigError(f"the measure returned NaN for '{goal.name}'.")
    return numbers
