"""Line charts as figures: points, curves, intervals, levels and limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chop.report.charts.chart import LineChart, Series, family_places
from chop.report.charts.scale import AxisScale, marks_beyond, scale_across, scale_upwards
from chop.report.figures.axes import (
    apply_scale,
    axis_label,
    draw_arrows,
    draw_baselines,
    name_ends,
)
from chop.report.figures.style import (
    FAINT,
    HEIGHT,
    MARKERS,
    PALETTE,
    WIDTH,
    Entry,
    add_legend,
    new_figure,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (5, 1.5, 1, 1.5)), (0, (1.5, 1.5)))
"""Line styles of step curves, so that overlapping curves stay visible."""
MAX_MARKED_LEVELS = 20
"""Maximum number of step levels with a marker each."""
MAX_POINTS = 60
"""Maximum number of points of a curve with a marker each."""
BAND_ALPHA = 0.3
APART_POINTS = 2.0
"""Vertical distance in points between curves that end at the same value."""
MAX_APART_POINTS = 8.0
"""Maximum distance in points between the first and the last of them: about 3 % of the axis."""
LIMIT_STYLES: tuple[Any, ...] = ((0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)))


def line_figure(charts: Sequence[LineChart]) -> Figure:
    """Returns a figure with a panel for each chart, two in a row.

    Args:
        charts: charts with the same series and the same vertical axis.
    """
    columns = min(2, len(charts))
    rows = math.ceil(len(charts) / columns)
    figure = new_figure(charts[0].title, WIDTH if columns == 1 else 1.3 * WIDTH, HEIGHT * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    scale = scale_upwards(charts)
    entries: list[Entry] = []
    for i, (axes, chart) in enumerate(zip(panels, charts, strict=False)):
        named = _draw(axes, chart, scale)
        entries += [] if i else named
        entries += _draw_limits(axes, chart)
        if i % columns:
            axes.set_ylabel("")
    for axes in panels[len(charts) :]:
        axes.remove()
    add_legend(figure, entries)
    return figure


def _draw(axes: Axes, chart: LineChart, scale: AxisScale) -> list[Entry]:
    """Draws everything except the limits and returns the legend entries."""
    percent, curves = chart.y.percent, [each for each in chart.series if not each.faint]
    factor = chart.y.factor
    entries: list[Entry] = [
        (axes.scatter(*_columns(each, factor), s=14, color=FAINT, zorder=1), each.label)
        for each in chart.series
        if each.faint
    ]
    shifts = _shifts(curves)
    lines = [
        _draw_curve(axes, each, place, shift, factor, BAND_ALPHA / max(1, len(curves)) ** 0.5)
        for each, place, shift in zip(curves, family_places(curves), shifts, strict=True)
    ]
    entries += [(line, each.label) for line, each in zip(lines, curves, strict=True)]
    levels = {label: factor * level for label, level in chart.levels.items()}
    entries += draw_baselines(axes, levels, scale, percent)
    apply_scale(axes, scale)
    _set_across(axes, chart)
    has_ends = any(mark.low is not None for each in curves for mark in each.marks)
    notes = [chart.spread] if has_ends and chart.spread else []
    notes += ["curves with equal ends are drawn slightly apart"] if any(shifts) else []
    axes.set_ylabel(axis_label(chart.y.label, scale, percent, *notes))
    colors = [line.get_color() for line in lines]
    off = [
        (x, factor * mark.y, color)
        for each, color in zip(curves, colors, strict=True)
        for x, mark in marks_beyond(each, chart.y, scale)
    ]
    draw_arrows(axes, off, scale, percent)
    if len(curves) > 1 and all(each.line == "steps" for each in curves):
        ends = [(each.marks[-1].x, factor * each.marks[-1].y) for each in curves]
        name_ends(axes, ends, [each.label for each in curves], colors)
    axes.grid(alpha=0.3)
    return entries


def _columns(series: Series, factor: float) -> tuple[list[float], list[float]]:
    return [mark.x for mark in series.marks], [factor * mark.y for mark in series.marks]


def _set_across(axes: Axes, chart: LineChart) -> None:
    from matplotlib.ticker import MaxNLocator

    apply_scale(axes, scale_across(chart), "x")
    if chart.x.ticks:
        axes.set_xticks(chart.x.ticks)
    elif chart.x.whole:
        steps = [1, 2, 5, 10]
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=steps))
    axes.set_xlabel(plain(chart.x.label))


def _shifts(curves: Sequence[Series]) -> list[float]:
    """Returns vertical offsets in points that separate step curves with equal ends."""
    ends = [each.marks[-1].y if each.line == "steps" else None for each in curves]
    counts = [0 if end is None else ends.count(end) for end in ends]
    step = min(APART_POINTS, MAX_APART_POINTS / max([1, *counts]))
    return [
        step * (ends[:i].count(end) - (counts[i] - 1) / 2) if counts[i] else 0.0
        for i, end in enumerate(ends)
    ]


def _draw_curve(
    axes: Axes, series: Series, place: int, shift: float, factor: float, alpha: float
) -> Line2D:
    """Draws a curve with its intervals.

    Args:
        axes: axes of the panel.
        series: data of the curve.
        place: index of its family, which selects color and marker.
        shift: vertical offset in points.
        factor: factor of the y values.
        alpha: opacity of a band.
    """
    from matplotlib.transforms import offset_copy

    x, y = _columns(series, factor)
    style: dict[str, Any] = {"color": PALETTE[place % len(PALETTE)], "markersize": 4.5}
    if series.line != "straight" or len(y) <= MAX_POINTS:
        style["marker"] = MARKERS[place % len(MARKERS)]
    if series.dashed:
        style |= {"linestyle": "--", "markerfacecolor": "white"}
    if series.line == "none":
        style["linestyle"] = "none"
    elif series.line == "steps":
        dashes = DASHES[place % len(DASHES)]
        style |= {"drawstyle": "steps-post", "linestyle": dashes, "markevery": _marked(y)}
    (line,) = axes.plot(x, y, **style)
    if shift:
        figure = axes.get_figure(root=True)
        line.set_transform(offset_copy(axes.transData, figure, y=shift, units="points"))
    _draw_intervals(axes, series, style["color"], factor, alpha)
    return line


def _marked(y: Sequence[float]) -> list[int]:
    """Returns the indices of step markers: each change of level, and the end."""
    changes = [i for i, value in enumerate(y) if i == 0 or value != y[i - 1]]
    return sorted({*(changes if len(changes) <= MAX_MARKED_LEVELS else ()), len(y) - 1})


def _draw_intervals(axes: Axes, series: Series, color: str, factor: float, alpha: float) -> None:
    """Draws a band behind steps, and error bars at other marks whose ends differ."""
    ends = [
        (mark.x, factor * mark.low, factor * mark.high)
        for mark in series.marks
        if mark.low is not None and mark.high is not None
    ]
    if series.line == "steps" and ends:
        xs, lows, highs = map(list, zip(*ends, strict=True))
        axes.fill_between(xs, lows, highs, step="post", alpha=alpha, color=color)
        return
    for x, low, high in ends:
        if low != high:
            bar: dict[str, Any] = {"fmt": "none", "ecolor": color, "elinewidth": 1.2, "capsize": 5}
            axes.errorbar(x, (low + high) / 2, yerr=(high - low) / 2, **bar)


def _draw_limits(axes: Axes, chart: LineChart) -> list[Entry]:
    """Draws vertical lines; the legend has their values unless the axis has ticks there."""
    return [
        (
            axes.axvline(x, color="0.4", linewidth=1.2, linestyle=LIMIT_STYLES[i % 2]),
            label if x in chart.x.ticks else f"{label}: {chart.x.label} {x:.6g}",
        )
        for i, (label, x) in enumerate(chart.limits.items())
    ]
