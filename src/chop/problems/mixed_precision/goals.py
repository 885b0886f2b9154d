"""Goals of a search over formats: measurable numbers and their directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chop.problems.mixed_precision.costs import COSTS
from chop.problems.mixed_precision.problem import SCORES
from chop.search.objective import Constraint, Direction, Goal, named_goals
from chop.train.tasks import known_metrics


def directions() -> dict[str, Direction]:
    """Returns name -> direction of each measurable number."""
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
    """Returns the objectives and budgets of a search over formats, see `named_goals`.

    Args:
        names: names of the objectives.
        budgets: name -> bound of each constraint.
        further: name -> direction of further numbers from a user's function.
    """
    return named_goals(names, budgets, {**directions(), **(further or {})}, sizes=COSTS)
