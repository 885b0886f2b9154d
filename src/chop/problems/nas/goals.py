"""Goals of an architecture search: measurable numbers and their directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chop.search.objective import Constraint, Direction, Goal, named_goals

SIZES = ("parameters", "size_bytes")
DIRECTIONS: dict[str, Direction] = {"accuracy": "maximize", **dict.fromkeys(SIZES, "minimize")}
"""Name -> direction of each measurable number."""


def nas_goals(
    names: Iterable[str],
    budgets: Mapping[str, float],
    judged: Mapping[str, Direction] | None = None,
) -> tuple[Goal | Constraint, ...]:
    """Returns the objectives and budgets of an architecture search, see `named_goals`.

    Args:
        names: names of the objectives.
        budgets: name -> bound of each constraint.
        judged: name -> direction of a user's function that replaces the accuracy.
    """
    sizes = {name: DIRECTIONS[name] for name in SIZES}
    return named_goals(names, budgets, DIRECTIONS if judged is None else {**judged, **sizes}, SIZES)
