"""Goals of an architecture search: what a trial measures, and which way is better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chop.search.objective import Constraint, Direction, Goal, named_goals

SIZES = ("parameters", "size_bytes")
DIRECTIONS: dict[str, Direction] = {"accuracy": "maximize", **dict.fromkeys(SIZES, "minimize")}
"""What a trial measures, and which way is better."""


def nas_goals(
    names: Iterable[str],
    budgets: Mapping[str, float],
    judged: Mapping[str, Direction] | None = None,
) -> tuple[Goal | Constraint, ...]:
    """Objectives and budgets of an architecture search, see `named_goals`.

    Args:
        names: names of the objectives.
        budgets: largest cost or least score by name.
        judged: the number of a function of the user's, in the place of the accuracy.
    """
    sizes = {name: DIRECTIONS[name] for name in SIZES}
    return named_goals(names, budgets, DIRECTIONS if judged is None else {**judged, **sizes}, SIZES)
