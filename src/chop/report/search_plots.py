"""Plots of searches, each one call and one file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from chop.errors import ConfigError
from chop.report.axes import (
    apply_scale,
    axis_label,
    axis_scale,
    draw_baselines,
    name_ends,
    trial_axis,
)
from chop.report.charts import Axis, Bar, BarChart, LineChart, Mark, Series, charted_as
from chop.report.figures import (
    HEIGHT,
    PALETTE,
    WIDTH,
    add_legend,
    line_style,
    new_figure,
    plain,
    save_figure,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

Run = Sequence[tuple[int, float]]
"""(configurations measured, best value so far): a value holds until the next one."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (5, 1.5, 1, 1.5)), (0, (1.5, 1.5)))
"""So that of two equal curves the lower one is seen as well."""
MOST_MARKED = 20
"""Improvements of a curve up to which each has a marker."""
BAND_ALPHA = 0.3
APART_POINTS = 2.0
"""Between curves that end at the same value."""
MOST_APART_POINTS = 20.0
"""Between the first and the last of them."""
MOST_BARS = 30


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
        found = [i for i, value in enumerate(middle) if i == 0 or value != middle[i - 1]]
        last = len(middle) - 1
        return sorted({*found, last}) if len(found) <= MOST_MARKED else [last]


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
        columns = zip(line.counts, line.middle, line.columns, strict=True)
        marks = [
            Mark(count, middle, *((min(column), max(column)) if line.is_band else ()))
            for count, middle, column in columns
        ]
        series.append(Series(line.label, tuple(marks), "steps"))
    x, y = Axis("trials", whole=True, log=False), Axis(ylabel, percent=percent)
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
    """Draws the best value found after so many trials: the median over the runs, and their range.

    Numbers that are no shares and span more than a decade are drawn on a logarithmic axis. A
    search that begins far from where all of them end does not flatten the rest: the axis is cut,
    and its label says how far the values go.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        curves: label -> runs, one per seed, as `Result.best_so_far` gives them. Points that are
            not finite are left out, and runs without any other. A run that ended before the
            others keeps its last value.
        ylabel: what is best.
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
        [value for line in lines for column in line.columns for value in column],
        kept=[line.middle[-1] for line in lines],
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
    if len(lines) > 1:
        ends = [(line.counts[-1], line.middle[-1]) for line in lines]
        name_ends(axes, ends, [line.label for line in lines], [c.get_color() for c in drawn])
    axes.grid(alpha=0.3)
    add_legend(figure, entries)
    return save_figure(figure, Path(path))


def _lines(curves: Mapping[str, Sequence[Run]], factor: float) -> list[_Line]:
    found = []
    for label, runs in curves.items():
        finite = [[(n, factor * value) for n, value in run if math.isfinite(value)] for run in runs]
        kept = [run for run in finite if run]
        if kept:
            found.append(_Line(label, *spread_of(kept)))
    return found


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


@dataclass(frozen=True)
class Cloud:
    """One panel of `plot_front`.

    Attributes:
        xlabel: what lies to the right.
        points: (x, y) of everything that was measured.
        front: those that nothing beats.
        limit: the budget of x, if it has one.
        texts: of each of the points, shown when it is pointed at; () has none.
    """

    xlabel: str
    points: Sequence[tuple[float, float]]
    front: Sequence[tuple[float, float]]
    limit: float | None = None
    texts: Sequence[str] = ()


def front_charts(
    clouds: Sequence[Cloud], *, ylabel: str, title: str, percent: bool = True
) -> list[LineChart]:
    """The charts of `plot_front`, which takes the same arguments: one for each cloud."""
    charts = []
    for cloud in clouds:
        told = list(zip(cloud.points, cloud.texts, strict=False))
        texts = dict(reversed(told))  # of equal points the first tells
        measured, front = (
            tuple(Mark(x, y, text=texts.get((x, y), "")) for x, y in points if _is_finite(x, y))
            for points in (cloud.points, sorted(cloud.front))
        )
        series = Series("measured", measured, "none", faint=True), Series("front", front)
        limits = {} if cloud.limit is None else {"budget": cloud.limit}
        axes = Axis(cloud.xlabel), Axis(ylabel, percent=percent)
        charts.append(LineChart(title, *axes, series, limits=limits))
    return charts


def _is_finite(*numbers: float) -> bool:
    return all(map(math.isfinite, numbers))


@charted_as(front_charts)
def plot_front(
    path: str | Path, clouds: Sequence[Cloud], *, ylabel: str, title: str, percent: bool = True
) -> Path:
    """Draws what was measured, and the front of it, a panel for each number against the first.

    Axes are those of `plot_best_so_far`.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        clouds: the panels, two in a row; points that are not finite are left out.
        ylabel: the number that all panels share.
        title: above the plot.
        percent: y are shares of 1 and drawn as percentages.
    Returns: `path`.
    Raises:
        ConfigError: there is no panel.
    """
    if not clouds:
        raise ConfigError("plot_front: expected at least one number beside the first.")
    columns = min(2, len(clouds))
    rows = math.ceil(len(clouds) / columns)
    figure = new_figure(title, WIDTH if columns == 1 else 1.3 * WIDTH, HEIGHT * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    factor = 100 if percent else 1
    drawn = [_columns(cloud.points, factor) for cloud in clouds]
    fronts = [_columns(sorted(cloud.front), factor) for cloud in clouds]
    scale = axis_scale(
        [y for _, ys in drawn for y in ys],
        kept=[y for _, ys in fronts for y in ys],
        percent=percent,
    )
    entries: list[tuple[Artist, str]] = []
    for i, (axes, cloud) in enumerate(zip(panels, clouds, strict=False)):
        found = _draw_cloud(axes, cloud, drawn[i], fronts[i])
        entries += found if i == 0 else found[2:]
        apply_scale(axes, scale)
        axes.set_ylabel(axis_label(ylabel, scale, percent) if i % columns == 0 else "")
    for axes in panels[len(clouds) :]:
        axes.remove()
    add_legend(figure, entries)
    return save_figure(figure, Path(path))


def _draw_cloud(
    axes: Axes,
    cloud: Cloud,
    points: tuple[list[float], list[float]],
    front: tuple[list[float], list[float]],
) -> list[tuple[Artist, str]]:
    """Draws one panel; returns what of it the legend names."""
    entries: list[tuple[Artist, str]] = [
        (axes.scatter(*points, s=14, color="0.65"), "measured"),
        (axes.plot(*front, "o-", color=PALETTE[0], markersize=5)[0], "front"),
    ]
    limits = [] if cloud.limit is None else [cloud.limit]
    for limit in limits:
        line = axes.axvline(limit, color="black", linestyle="--", linewidth=1.2)
        entries.append((line, f"budget: {cloud.xlabel} {limit:.6g}"))
    apply_scale(axes, axis_scale([*points[0], *limits]), "x")
    axes.set_xlabel(plain(cloud.xlabel))
    axes.grid(alpha=0.3)
    return entries


def _columns(
    points: Sequence[tuple[float, float]], factor: float
) -> tuple[list[float], list[float]]:
    finite = [(x, factor * y) for x, y in points if _is_finite(x, y)]
    return [x for x, _ in finite], [y for _, y in finite]


def importance_charts(
    shares: Mapping[str, float], errors: Mapping[str, float] | None = None, *, title: str
) -> list[BarChart]:
    """The chart of `plot_importances`, which takes the same arguments."""
    bars = []
    for label, share in _bars(shares).items():
        low, high = _ends(share, (errors or {}).get(label)) or (None, None)
        bars.append(Bar(label, (share,), low, high))
    return [BarChart(title, Axis("importance", percent=True, log=False), tuple(bars))]


@charted_as(importance_charts)
def plot_importances(
    path: str | Path,
    shares: Mapping[str, float],
    errors: Mapping[str, float] | None = None,
    *,
    title: str,
) -> Path:
    """Draws how much each choice matters, as bars, in the order given from the top.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        shares: choice -> share of 1; of more than 30, those from the 30th on share one bar.
        errors: choice -> standard error of its share, drawn to both sides. Default: none.
        title: above the plot.
    Returns: `path`.
    Raises:
        ConfigError: there is no choice.
    """
    if not shares:
        raise ConfigError("plot_importances: expected at least one choice.")
    bars = _bars(shares)
    figure = new_figure(title, WIDTH, 1.2 + 0.24 * len(bars))
    axes = figure.subplots()
    axes.barh(range(len(bars)), [100 * share for share in bars.values()], color=PALETTE[0])
    for i, (label, share) in enumerate(bars.items()):
        if ends := _ends(share, (errors or {}).get(label)):
            axes.plot([100 * end for end in ends], [i, i], color="0.35", linewidth=1.2)
    axes.set_yticks(range(len(bars)), list(map(plain, bars)), fontsize="small")
    axes.invert_yaxis()
    axes.set(xlabel="importance (%)" + (", with standard error" if errors else ""))
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    return save_figure(figure, Path(path))


def _ends(share: float, error: float | None) -> tuple[float, float] | None:
    """The ends of an interval of one standard error, within 0 and 1; None without an error."""
    return None if error is None else (max(0.0, share - error), min(1.0, share + error))


def _bars(shares: Mapping[str, float]) -> dict[str, float]:
    """The shares; those from the 30th on together where there are more."""
    if len(shares) <= MOST_BARS:
        return dict(shares)
    first = list(shares.items())[: MOST_BARS - 1]
    rest = list(shares.values())[MOST_BARS - 1 :]
    return {**dict(first), f"{len(rest)} others together": sum(rest)}


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
