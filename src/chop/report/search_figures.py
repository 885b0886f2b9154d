"""Figures of a search: best value so far, Pareto front and importance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping

from chop.report.charts.best_so_far import best_so_far_charts
from chop.report.charts.search import Cloud, front_charts, importance_charts
from chop.report.report import Cell, Tile, Writer, figure_files
from chop.search import Result, SearchSpace, TrialRecord
from chop.search.importance import importance_errors, importances
from chop.search.objective import Goals, select_constraints, select_objectives

MAX_LISTED_CHOICES = 12
"""Maximum number of choices listed individually. Longer lists count each option."""

WHOLE = 1e4
"""Size from which numbers are shown without fractions."""


def search_figures(
    sampler: str,
    result: Result,
    space: SearchSpace,
    title: str,
    percent: Collection[str],
    baselines: Mapping[str, float] | None = None,
) -> dict[str, Writer]:
    """Returns the figures `best-so-far`, `front` and `importance`, each as .svg and .png.

    No figures are returned if no trial has a finite first objective within the budgets. `front`
    plots the first objective against every other goal, if any. `importance` needs enough trials;
    see `chop.search.importance`.

    Args:
        sampler: label of the curve.
        result: result with its trials.
        space: search space.
        title: title of each figure.
        percent: names of numbers that are shares of 1.
        baselines: label -> value of the first objective, a horizontal line in `best-so-far`.
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
        baselines=baselines,
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
    """Describes budgets for a title, or returns "" if there are none.

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
    """Returns a panel for each goal after the first, in its own unit."""
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
    """Returns lines with a trial's choices; many choices are counted by option."""
    chosen = trial.config
    if len(chosen) > MAX_LISTED_CHOICES:
        counts = Counter(chosen.values()).most_common(MAX_LISTED_CHOICES)
        lines = [f"{option}: {count} of {len(chosen)}" for option, count in counts]
    else:
        lines = [f"{name}: {option}" for name, option in chosen.items()]
    return "\n".join((f"trial {trial.number}", *lines))


def _cell(value: float, is_share: bool) -> Cell:
    """Formats a number with four digits, as in tables; large numbers are whole."""
    if is_share:
        return Cell.of(value, ".2%")
    return Cell.of(round(value), ",") if abs(value) >= WHOLE else Cell.of(value, ".4g")


def search_tiles(result: Result, space: SearchSpace, shares: Collection[str] = ()) -> list[Tile]:
    """Returns the headline numbers of a search: goals and budgets of the best trial, trial count.

    Args:
        result: result with its trials.
        space: search space.
        shares: names of numbers that are shares of 1.
    """
    count = f"of {space.size:,} configurations" if space.size < 1e9 else ""
    trials = Tile("trials measured", Cell.of(len(result.measured), ","), count)
    if result.best is None:
        return [trials]
    bounds = {limit.name: limit.bound for limit in select_constraints(result.goals)}
    values = {goal.name: result.best.values[goal.name] for goal in result.goals}
    notes = {name: f"budget {bound:,.6g}" for name, bound in bounds.items()}
    about = f"trial {result.best.number}, on the search rows"
    best = [
        Tile(f"{name} of the best trial", _cell(value, name in shares), notes.get(name, about))
        for name, value in values.items()
    ]
    return [*best, trials]
