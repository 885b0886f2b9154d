"""Plot of the best value that searches have found until each trial."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from chop.errors import ConfigError
from chop.report.axes import (
    TRIALS,
    AxisScale,
    apply_scale,
    axis_label,
    axis_scale,
    draw_arrows,
    draw_baselines,
    name_ends,
    trial_axis,
)
from chop.report.charts import Axis, LineChart, Mark, Series, charted_as
from chop.report.figures import add_legend, line_style, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

Run = Sequence[tuple[int, float]]
"""(trial, best value so far): a value holds until the next one."""
LEAST_LEVELS = 3
"""Levels of a curve from which on its first one may lie off the axis."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (5, 1.5, 1, 1.5)), (0, (1.5, 1.5)))
"""So that of two equal curves the lower one is seen as well."""
MOST_MARKED = 20
"""Improvements of a curve up to which each has a marker."""
BAND_ALPHA = 0.3
APART_POINTS = 2.0
"""Between curves that end at the same value."""
MOST_APART_POINTS = 20.0
"""Between the first and the last of them."""


@dataclass(frozen=True)
class _Line:
    """One curve: the median over its runs, and their spread."""

    label: str
    counts: list[int]
    columns: list[list[float]]

    @property
    def middle(self) -> list[float]:
        return [median(column) for column in self.columns]

    @property
    def is_band(self) -> bool:
        return len(self.columns[0]) > 1

    def marked(self) -> list[int]:
        """Positions where the median changes, and the last trial measured."""
        middle = self.middle
        changes = [i for i, value in enumerate(middle) if i == 0 or value != middle[i - 1]]
        last = len(middle) - 1
        return sorted({*changes, last}) if len(changes) <= MOST_MARKED else [last]

    @property
    def early(self) -> int:
        """Number of positions of the first level, which may lie off the axis. 0 if it may not.

        A first trial is often as bad as chance, and flattens all that the search finds later.
        """
        middle = self.middle
        if len(set(middle)) < LEAST_LEVELS:
            return 0
        return next(i for i, value in enumerate(middle) if value != middle[0])

    def off(self, scale: AxisScale) -> Iterator[tuple[int, float]]:
        """Yields trials where the median enters the axis, with the value farthest beyond it."""
        middle, start = self.middle, None
        for i, value in enumerate(middle):
            if scale.shows(value):
                if start is not None:
                    yield self.counts[i], middle[start]
                start = None
            elif start is None:
                start = i
        if start is not None:
            yield self.counts[-1], middle[start]


def best_so_far_charts(
    curves: Mapping[str, Sequence[Run]],
    *,
    ylabel: str,
    title: str,
    baselines: Mapping[str, float] | None = None,
    percent: bool = True,
) -> list[LineChart]:
    """The chart of `plot_best_so_far`, which takes the same arguments."""
    series = []
    for line in _lines(curves, 1):
        marks = []
        for i, (count, middle) in enumerate(zip(line.counts, line.middle, strict=True)):
            column = line.columns[i]
            low, high = (min(column), max(column)) if line.is_band else (None, None)
            marks.append(Mark(count, middle, low, high, optional=i < line.early))
        series.append(Series(line.label, tuple(marks), "steps"))
    x, y = Axis(TRIALS, whole=True, log=False), Axis(ylabel, percent=percent)
    return [LineChart(title, x, y, tuple(series), dict(baselines or {}))]


@charted_as(best_so_far_charts)
def plot_best_so_far(
    path: str | Path,
    curves: Mapping[str, Sequence[Run]],
    *,
    ylabel: str,
    title: str,
    baselines: Mapping[str, float] | None = None,
    percent: bool = True,
) -> Path:
    """Draws the best value found until each trial: the median over the runs, and their range.

    Numbers that are no shares and span more than a decade are drawn on a logarithmic axis. A first
    trial that is far from all later ones does not flatten them: the axis begins at the second
    level of the curve, an arrow with the value says where the curve comes from, and the label of
    the axis how far the values go.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        curves: label -> runs, one per seed, as `Result.best_by_trial` gives them. Points that are
            not finite are left out, and runs without any other. A run that ended before the
            others keeps its last value.
        ylabel: name of the value.
        title: above the plot.
        baselines: label -> value, drawn level; one far from all curves is named in the legend.
        percent: values are shares of 1 and drawn as percentages.
    Returns: `path`.
    Raises:
        ConfigError: no run has a point.
    """
    lines = _lines(curves, 100 if percent else 1)
    if not lines:
        raise ConfigError("plot_best_so_far: expected at least one run with a point.")
    levels = {label: (100 if percent else 1) * v for label, v in (baselines or {}).items()}
    figure = new_figure(title)
    axes = figure.subplots()
    scale = axis_scale(
        [value for line in lines for column in line.columns[line.early :] for value in column],
        kept=[value for line in lines for value in line.middle[line.early :]],
        optional=[v for line in lines for column in line.columns[: line.early] for v in column],
        baselines=list(levels.values()),
        percent=percent,
    )
    shifts = _shifts(lines)
    drawn = [
        _draw_line(axes, line, i, BAND_ALPHA / len(lines) ** 0.5, shifts[i])
        for i, line in enumerate(lines)
    ]
    curves_named = zip(drawn, (line.label for line in lines), strict=True)
    entries = [*curves_named, *draw_baselines(axes, levels, scale, percent)]
    apply_scale(axes, scale)
    notes = ["median and range of the seeds"] if any(line.is_band for line in lines) else []
    notes += ["curves that end alike are drawn side by side"] if any(shifts) else []
    axes.set_ylabel(axis_label(ylabel, scale, percent, *notes))
    trial_axis(axes, min(line.counts[0] for line in lines), max(line.counts[-1] for line in lines))
    colors = [curve.get_color() for curve in drawn]
    off = [(x, y, c) for line, c in zip(lines, colors, strict=True) for x, y in line.off(scale)]
    draw_arrows(axes, off, scale, percent)
    if len(lines) > 1:
        ends = [(line.counts[-1], line.middle[-1]) for line in lines]
        name_ends(axes, ends, [line.label for line in lines], colors)
    axes.grid(alpha=0.3)
    add_legend(figure, entries)
    return save_figure(figure, Path(path))


def _lines(curves: Mapping[str, Sequence[Run]], factor: float) -> list[_Line]:
    lines = []
    for label, runs in curves.items():
        finite = [[(n, factor * value) for n, value in run if math.isfinite(value)] for run in runs]
        finished = [run for run in finite if run]
        if finished:
            lines.append(_Line(label, *spread_of(finished)))
    return lines


def _shifts(lines: Sequence[_Line]) -> list[float]:
    """Points by which each curve is raised, so that those with the same end lie side by side."""
    ends = [line.middle[-1] for line in lines]
    step = min(APART_POINTS, MOST_APART_POINTS / max(map(ends.count, ends)))
    return [step * (ends[:i].count(end) - (ends.count(end) - 1) / 2) for i, end in enumerate(ends)]


def _draw_line(axes: Axes, line: _Line, position: int, alpha: float, shift: float) -> Line2D:
    from matplotlib.transforms import offset_copy

    style = line_style(position)
    style["linestyle"] = DASHES[position % len(DASHES)]
    marks = line.marked()
    (drawn,) = axes.plot(line.counts, line.middle, drawstyle="steps-post", markevery=marks, **style)
    if shift:
        figure = axes.get_figure(root=True)
        drawn.set_transform(offset_copy(axes.transData, figure, y=shift, units="points"))
    if line.is_band:
        low, high = map(min, line.columns), map(max, line.columns)
        axes.fill_between(
            line.counts, list(low), list(high), step="post", alpha=alpha, color=style["color"]
        )
    return drawn


def spread_of(runs: Sequence[Run]) -> tuple[list[int], list[list[float]]]:
    """Each trial count from which all runs have a value, and the runs' values there.

    >>> spread_of([[(1, 0.5), (3, 0.7)], [(2, 0.6)]])
    ([2, 3], [[0.5, 0.6], [0.7, 0.6]])
    """
    first = max(run[0][0] for run in runs)
    last = max(run[-1][0] for run in runs)
    counts = list(range(first, last + 1))
    return counts, [[value_at(run, count) for run in runs] for count in counts]


def value_at(run: Run, count: int) -> float:
    """The best of a run after so many trials, from its first point on."""
    return next(value for at, value in reversed(run) if at <= count)
