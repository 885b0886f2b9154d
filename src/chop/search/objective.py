"""Objectives and constraints on the named numbers that an objective function returns."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from chop.config import check_fields, with_checked_init
from chop.errors import ChopError, ConfigError, check_known, describe, did_you_mean
from chop.search.space import Config

Direction = Literal["maximize", "minimize"]

Report = Callable[[int, float], None]
"""Callback `report(step, value)` for intermediate values of the first goal; may raise Pruned."""

Measure = Callable[[Config, Report], Mapping[str, float]]
"""Objective function: returns the measured numbers of a configuration, including each goal."""


ROUNDING = 1e-9
"""Relative tolerance of a bound, for rounding in sums of bits."""


class Pruned(ChopError):  # noqa: N818 (Optuna's name for a trial that is not worth finishing)
    """Pruned trial. `report` raises it, and objective functions must not catch it."""


class NotANumberError(ConfigError):
    """Raised if a goal is NaN or infinitely good; only this trial fails."""


LOWER_IS_BETTER = re.compile(
    "(^|_)(loss|error|mse|mae|rmse|nll|kl|wer|cer|entropy|perplexity|ppl|latency|time|ms|seconds|"
    "bits|bytes|size|memory|energy|cost|parameters|params|flops|macs|luts|dsps)(_|$)",
    re.IGNORECASE,
)
"""Names of numbers of which smaller ones are usually better."""


def _default_direction(name: object) -> Direction:
    if isinstance(name, str) and LOWER_IS_BETTER.search(name):
        raise ConfigError(
            f"Goal '{name}': smaller numbers are usually better, and the default is 'maximize'; "
            f"pass the direction: Goal('{name}', 'minimize')."
        )
    return "maximize"


@with_checked_init
@dataclass(frozen=True)
class Goal:
    """Objective: measured number to maximize or minimize.

    Attributes:
        name: name of the number.
        direction: "maximize" (default) or "minimize". Names of which smaller numbers are usually
            better, such as a loss, a latency or a size, have no default.

    Example: `Goal("latency_ms", "minimize")`.
    """

    name: str
    direction: Direction = None  # type: ignore[assignment]  # set below

    def __post_init__(self) -> None:
        if self.direction is None:
            object.__setattr__(self, "direction", _default_direction(self.name))
        check_fields(self, "Goal")

    def loss(self, value: float) -> float:
        """Returns the loss: `value`, negated if the direction is "maximize"."""
        return -value if self.direction == "maximize" else value


@with_checked_init
@dataclass(frozen=True)
class Constraint:
    """Constraint: bound on a measured number.

    Attributes:
        name: name of the number.
        bound: bound in the unit of the number, met up to rounding (1e-9 of it).
        direction: "minimize" (default) for an upper bound, "maximize" for a lower bound.

    Example: `Constraint("bits", 4.5)` accepts at most 4.5 bits.
    """

    name: str
    bound: float
    direction: Direction = "minimize"

    def __post_init__(self) -> None:
        check_fields(self, "Constraint")
        if not math.isfinite(self.bound):
            raise ConfigError(f"constraint '{self.name}': expected a number, got {self.bound}.")

    def excess(self, value: float) -> float:
        """Returns the violation: distance beyond the bound and its rounding, at most 0 if met."""
        beyond = self.bound - value if self.direction == "maximize" else value - self.bound
        return beyond - ROUNDING * abs(self.bound)


Goals = Sequence[Goal | Constraint]


def select_objectives(goals: Goals) -> tuple[Goal, ...]:
    """Returns the objectives among the goals, at least one.

    Raises:
        ConfigError: if there is no objective, or two objectives share a name.
    """
    objectives = tuple(goal for goal in goals if isinstance(goal, Goal))
    names = [goal.name for goal in objectives]
    if not objectives:
        raise ConfigError("goals: expected at least one objective, a goal without a budget.")
    if len(set(names)) < len(names):
        raise ConfigError(f"goals: two objectives share a name: {', '.join(names)}.")
    return objectives


def select_constraints(goals: Goals) -> tuple[Constraint, ...]:
    """Returns the constraints among the goals."""
    return tuple(goal for goal in goals if isinstance(goal, Constraint))


def named_goals(
    names: Iterable[str],
    budgets: Mapping[str, float],
    directions: Mapping[str, Direction],
    sizes: Collection[str],
) -> tuple[Goal | Constraint, ...]:
    """Returns objectives and constraints by the names that a problem defines.

    Args:
        names: names of the objectives.
        budgets: name -> bound of each constraint.
        directions: name -> direction of each number that the problem measures.
        sizes: names of sizes, which are positive for every model.
    Raises:
        ConfigError: if a name is unknown, or a budget is out of range.
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
    """Returns goals as stored: [name, direction, bound], with bound None for objectives."""
    return [[g.name, g.direction, g.bound if isinstance(g, Constraint) else None] for g in goals]


def goals_from_json(stored: Iterable[Sequence[Any]]) -> tuple[Goal | Constraint, ...]:
    """Parses goals from the form of `goals_to_json`."""
    return tuple(
        Goal(name, direction) if bound is None else Constraint(name, bound, direction)
        for name, direction, bound in stored
    )


def check_values(values: Mapping[str, float], goals: Goals) -> dict[str, float]:
    """Returns the numbers of an objective function as floats, with every goal present.

    A trial with NaN or an infinitely good value fails, so that it cannot rank best. An infinite
    loss is valid.

    Raises:
        ConfigError: if the value is not a mapping of names to numbers, or a goal is missing.
        NotANumberError: if a goal is NaN, or an objective is infinitely good.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"the measure returned {describe(values)}, expected a mapping of names to numbers."
        )
    numbers = {name: _to_number(name, value) for name, value in values.items()}
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


def _to_number(name: object, value: Any) -> float:
    """Returns a measured number as a float; arrays and tensors have one element."""
    if isinstance(value, str | bytes | bytearray):
        raise ConfigError(
            f"the measure returned the text {describe(value)} for '{name}', expected a number; "
            "a configuration has texts, whose values space.values(config) returns."
        )
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ConfigError(
            f"the measure returned {describe(value)} for '{name}', expected a number."
        ) from error
