"""Chart of the best value of a search after each trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from chop.errors import ConfigError
from chop.report.charts.chart import Axis, LineChart, Mark, Series

TRIALS = "trial"
"""Label of the axis of trial numbers, as in tables and in `--trial`."""
MIN_LEVELS = 3
"""Minimum number of levels of a curve before its first level may lie off the axis."""
Run = Sequence[tuple[int, float]]
"""(trial, best value so far) pairs; a value holds until the next pair."""


def best_so_far_charts(
    curves: Mapping[str, Sequence[Run]],
    *,
    ylabel: str,
    title: str,
    baselines: Mapping[str, float] | None = None,
    percent: bool = True,
) -> list[LineChart]:
    """Returns a chart of the best value after each trial: median and range over the runs.

    Values that are not shares and span more than a decade are drawn on a logarithmic axis. A poor
    first trial does not flatten the rest: the axis then begins at the second level of the curve,
    and an arrow shows the first value.

    Args:
        curves: label -> runs, one per seed, in the format of `Result.best_by_trial`. Non-finite
            points are skipped, and so are runs without finite points. A run that ended early keeps
            its last value.
        ylabel: name of the value.
        title: title of the chart.
        baselines: label -> value, drawn as a horizontal line. A baseline far from all curves
            appears only in the legend.
        percent: draws the values, shares of 1, as percentages.
    Raises:
        ConfigError: if no run has a point.
    """
    series, required = [], list[float]()
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
        required += middle[early:]
    if not series:
        raise ConfigError("best so far: expected at least one run with a finite value.")
    x, y = Axis(TRIALS, whole=True, log=False), Axis(ylabel, percent=percent)
    levels, spread = dict(baselines or {}), "median and range of the seeds"
    return [LineChart(title, x, y, tuple(series), levels, spread=spread, kept=tuple(required))]


def _first_level(values: Sequence[float]) -> int:
    """Returns how many trials form a first level that may lie off the axis, or 0.

    The first trial is often as bad as chance, and would flatten all later improvements.
    """
    if len(set(values)) < MIN_LEVELS:
        return 0
    return next(i for i, value in enumerate(values) if value != values[0])


def compute_spread(runs: Sequence[Run]) -> tuple[list[int], list[list[float]]]:
    """Returns the trial counts from which all runs have values, and the values of the runs there.

    >>> compute_spread([[(1, 0.5), (3, 0.7)], [(2, 0.6)]])
    ([2, 3], [[0.5, 0.6], [0.7, 0.6]])
    """
    first = max(run[0][0] for run in runs)
    last = max(run[-1][0] for run in runs)
    counts = list(range(first, last + 1))
    return counts, [[value_at(run, count) for run in runs] for count in counts]


def value_at(run: Run, count: int) -> float:
    """Returns the best value of a run after `count` trials; before its first point, the first
    value.
    """
    return next(value for at, value in reversed(run) if at <= count)
