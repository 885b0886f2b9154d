"""Goals of a search over formats: what a trial measures, and which way is better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chop.problems.mixed_precision.costs import COSTS
from chop.problems.mixed_precision.problem import SCORES
from chop.search.objective import Constraint, Direction, Goal, named_goals
from chop.train.tasks import known_metrics


def directions() -> dict[str, Direction]:
    """Returns what a trial can measure, and which way is better."""
    metrics = known_metrics().items()
    return {
        **{name: "maximize" if m.higher_is_better else "minimize" for name, m in metrics},
        **dict.fromkeys((*SCORES, *COSTS), "minimize"),
    }


def precision_goals(
    names: Iterable[str],
    budgets: Mapping[str, float],
    further: Mapping[str, Direction] | None = None,
) -> tuple[Goal | Constraint, ...]:
    """Objectives and budgets of a search over formats, see `named_goals`.

    Args:
        names: names of the objectives.
        budgets: bound of each constraint, by name.
        further: directions of numbers of a user's function, by name.
    """
    return named_goals(names, budgets, {**directions(), **(further or {})}, sizes=COSTS)
