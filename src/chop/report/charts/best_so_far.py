"""Chart of the best value that searches have found until each trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from chop.errors import ConfigError
from chop.report.charts.chart import Axis, LineChart, Mark, Series

TRIALS = "trial"
"""Name of the axis of trial numbers, which are those of tables and of `--trial`."""
LEAST_LEVELS = 3
"""Levels of a curve from which on its first one may lie off the axis."""
Run = Sequence[tuple[int, float]]
"""(trial, best value so far): a value holds until the next one."""


def best_so_far_charts(
    curves: Mapping[str, Sequence[Run]],
    *,
    ylabel: str,
    title: str,
    baselines: Mapping[str, float] | None = None,
    percent: bool = True,
) -> list[LineChart]:
    """Returns a chart of the best value until each trial: median over the runs, and their range.

    Numbers that are no shares and span more than a decade are drawn on a logarithmic axis. A first
    trial that is far from all later ones does not flatten them: the axis begins at the second
    level of the curve, and an arrow has the value of the first.

    Args:
        curves: label -> runs, one per seed, as `Result.best_by_trial` gives them. Points that are
            not finite are left out, and runs without any other. A run that ended before the
            others keeps its last value.
        ylabel: name of the value.
        title: title of the chart.
        baselines: label -> value, drawn level; one far from all curves is named in the legend.
        percent: values are shares of 1 and drawn as percentages.
    Raises:
        ConfigError: no run has a point.
    """
    series, kept = [], list[float]()
    for label, runs in curves.items():
        finite = [[(n, value) for n, value in run if math.isfinite(value)] for run in runs]
        measured = [run for run in finite if run]
        if not measured:
            continue
        counts, columns = compute_spread(measured)
        middle = [median(column) for column in columns]
        early = _first_level(middle)
        marks = []
        for i, (count, value, ys) in enumerate(zip(counts, middle, columns, strict=True)):
            low, high = (min(ys), max(ys)) if len(ys) > 1 else (None, None)
            marks.append(Mark(count, value, low, high, optional=i < early))
        series.append(Series(label, tuple(marks), "steps"))
        kept += middle[early:]
    if not series:
        raise ConfigError("best so far: expected at least one run with a point.")
    x, y = Axis(TRIALS, whole=True, log=False), Axis(ylabel, percent=percent)
    levels, spread = dict(baselines or {}), "median and range of the seeds"
    return [LineChart(title, x, y, tuple(series), levels, spread=spread, kept=tuple(kept))]


def _first_level(values: Sequence[float]) -> int:
    """Returns how many trials have the first level, which may lie off the axis. 0 if it may not.

    A first trial is often as bad as chance, and flattens all that the search finds later.
    """
    if len(set(values)) < LEAST_LEVELS:
        return 0
    return next(i for i, value in enumerate(values) if value != values[0])


def compute_spread(runs: Sequence[Run]) -> tuple[list[int], list[list[float]]]:
    """Each trial count from which all runs have a value, and the runs' values there.

    >>> compute_spread([[(1, 0.5), (3, 0.7)], [(2, 0.6)]])
    ([2, 3], [[0.5, 0.6], [0.7, 0.6]])
    """
    first = max(run[0][0] for run in runs)
    last = max(run[-1][0] for run in runs)
    counts = list(range(first, last + 1))
    return counts, [[value_at(run, count) for run in runs] for count in counts]


def value_at(run: Run, count: int) -> float:
    """The best of a run after so many trials, from its first point on."""
    return next(value for at, value in reversed(run) if at <= count)
