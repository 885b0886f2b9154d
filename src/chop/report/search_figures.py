"""Figures of a search: best so far, front and importance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection

from chop.report.charts.best_so_far import best_so_far_charts
from chop.report.charts.search import Cloud, front_charts, importance_charts
from chop.report.report import Cell, Tile, Writer, figure_files
from chop.search import Result, SearchSpace, TrialRecord
from chop.search.importance import importance_errors, importances
from chop.search.objective import Goals, select_constraints, select_objectives

MOST_LISTED = 12
"""Most choices of a trial that are listed one by one. Longer lists count each option."""

WHOLE = 1e4
"""Numbers from which on fractions are not shown."""


def search_figures(
    sampler: str, result: Result, space: SearchSpace, title: str, percent: Collection[str]
) -> dict[str, Writer]:
    """The figures `best-so-far`, `front` and `importance`, each as .svg and .png.

    There is none where the first objective has no finite value within the budgets.
    `front`: the first objective against every other goal, if there is another. `importance`: see
    `chop.search.importance`; left out while too few were measured.

    Args:
        sampler: label of the curve.
        result: with what was measured.
        space: space of the search.
        title: above each figure.
        percent: numbers that are shares of 1.
    """
    goal, run = select_objectives(result.goals)[0].name, result.best_by_trial()
    if not any(math.isfinite(value) for _, value in run):
        return {}
    files = figure_files(
        "best-so-far",
        best_so_far_charts,
        {sampler: [run]},
        ylabel=f"best {goal} so far",
        title="\n".join(
            filter(None, (f"{title}: best {goal} so far, sampler {sampler}", within(result.goals)))
        ),
        percent=goal in percent,
    )
    clouds, shares = _build_clouds(result), importances(result, space)
    if clouds:
        others = ", ".join(cloud.xlabel for cloud in clouds)
        about = f"{title}: {goal} against {others}, every trial"
        axes = {"ylabel": goal, "title": about, "percent": goal in percent}
        files |= figure_files("front", front_charts, clouds, **axes)
    if shares:
        errors = importance_errors(result, space)
        about = f"{title}: importance of each choice for {goal}"
        files |= figure_files("importance", importance_charts, shares, errors, title=about)
    return files


def within(goals: Goals) -> str:
    """The budgets, for a title; "" where there is none.

    >>> from chop.search import Constraint
    >>> within([Constraint("bits", 4), Constraint("accuracy", 0.9, "maximize")])
    'within bits at most 4, accuracy at least 0.9'
    """
    bounds = [
        f"{limit.name} at {'most' if limit.direction == 'minimize' else 'least'} {limit.bound:.6g}"
        for limit in select_constraints(goals)
    ]
    return f"within {', '.join(bounds)}" if bounds else ""


def _build_clouds(result: Result) -> list[Cloud]:
    """A panel for each goal beside the first, in its own unit."""
    first = select_objectives(result.goals)[0].name
    names = [goal.name for goal in result.goals if goal.name != first]
    bounds = {limit.name: limit.bound for limit in select_constraints(result.goals)}

    def points(trials: list[TrialRecord], name: str) -> list[tuple[float, float]]:
        return [(trial.values[name], trial.values[first]) for trial in trials]

    measured, front = result.measured, result.front
    texts = list(map(about_trial, measured))
    return [
        Cloud(name, points(measured, name), points(front, name), bounds.get(name), texts)
        for name in dict.fromkeys(names)
    ]


def about_trial(trial: TrialRecord) -> str:
    """What a trial chose, in lines: each choice, or of many how often each option was taken."""
    chosen = trial.config
    if len(chosen) > MOST_LISTED:
        counts = Counter(chosen.values()).most_common(MOST_LISTED)
        lines = [f"{option}: {count} of {len(chosen)}" for option, count in counts]
    else:
        lines = [f"{name}: {option}" for name, option in chosen.items()]
    return "\n".join((f"trial {trial.number}", *lines))


def _cell(value: float, is_share: bool) -> Cell:
    """A number with four digits, as tables have it; a large one is whole."""
    if is_share:
        return Cell.of(value, ".2%")
    return Cell.of(round(value), ",") if abs(value) >= WHOLE else Cell.of(value, ".4g")


def search_tiles(result: Result, space: SearchSpace, shares: Collection[str] = ()) -> list[Tile]:
    """The numbers of a search that matter most: goals and budgets of the best, and the trials.

    Args:
        result: with what was measured.
        space: space of the search.
        shares: numbers that are shares of 1.
    """
    count = f"of {space.size:,} configurations" if space.size < 1e9 else ""
    trials = Tile("trials measured", Cell.of(len(result.measured), ","), count)
    if result.best is None:
        return [trials]
    bounds = {limit.name: limit.bound for limit in select_constraints(result.goals)}
    values = {goal.name: result.best.values[goal.name] for goal in result.goals}
    notes = {name: f"budget {bound:,.6g}" for name, bound in bounds.items()}
    about = f"trial {result.best.number}, on the rows of the search"
    best = [
        Tile(f"{name} of the best", _cell(value, name in shares), notes.get(name, about))
        for name, value in values.items()
    ]
    return [*best, trials]
