"""Plots of measured rows, each one call and one file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.report.axes import apply_scale, axis_label, axis_scale, draw_baselines
from chop.report.charts import Axis, HeatMap, LineChart, Mark, Series, charted_as, heat_map
from chop.report.figures import (
    FAINT,
    add_legend,
    line_style,
    new_figure,
    on_cell,
    plain,
    save_figure,
)
from chop.train.metric import Metric
from chop.train.tasks import CLASSIFICATION

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

ACCURACY = CLASSIFICATION.metric
Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """One line of a plot.

    Attributes:
        label: what the legend says.
        points: (x, accuracy from 0 to 1), in any order.
        family: curves of one family share color and marker; default, the label.
        dashed: for the weaker member of a family.
        ranges: x -> least and greatest accuracy there, drawn as an error bar.
        joined: a line goes from point to point.
    """

    label: str
    points: Sequence[Point]
    family: str | None = None
    dashed: bool = False
    ranges: Mapping[float, tuple[float, float]] = field(default_factory=dict)
    joined: bool = True


@dataclass(frozen=True)
class Trials:
    """Trials of a search, drawn as grey points behind the curves of a plot.

    Attributes:
        points: (x, accuracy from 0 to 1) of each.
        texts: text of each point, shown on hover. () has none.
        label: label in the legend.
    """

    points: Sequence[Point]
    texts: Sequence[str] = ()
    label: str = "every trial"

    @property
    def finite(self) -> list[tuple[float, float, str]]:
        """x, accuracy and text of each point that has a place on a plot."""
        texts = [*self.texts, *[""] * (len(self.points) - len(self.texts))]
        whole = zip(self.points, texts, strict=True)
        return [(x, y, text) for (x, y), text in whole if math.isfinite(x) and math.isfinite(y)]


def accuracy_charts(
    curves: Sequence[Curve],
    baselines: Mapping[str, float] | None = None,
    *,
    xlabel: str,
    title: str,
    ticks: Sequence[float] | None = None,
    metric: Metric = ACCURACY,
    marks: Mapping[str, float] | None = None,
    trials: Trials | None = None,
) -> list[LineChart]:
    """The chart of `plot_accuracy`, which takes the same arguments."""
    families = {curve.family or curve.label for curve in curves}
    series = [
        Series(
            curve.label,
            tuple(
                Mark(x, y, *curve.ranges.get(x, ()))
                for x, y in sorted(curve.points)
                if math.isfinite(y)
            ),
            "straight" if curve.joined else "none",
            family=(curve.family or curve.label) if len(families) > 1 else "",
            dashed=curve.dashed,
        )
        for curve in curves
    ]
    if trials is not None:
        behind = tuple(Mark(x, y, text=text) for x, y, text in trials.finite)
        series.insert(0, Series(trials.label, behind, "none", faint=True))
    x = Axis(
        xlabel,
        log=trials is None,
        whole=ticks is not None and all(float(tick).is_integer() for tick in ticks),
    )
    y = Axis(metric.name, percent=metric.is_share)
    return [LineChart(title, x, y, tuple(series), dict(baselines or {}), dict(marks or {}))]


@charted_as(accuracy_charts)
def plot_accuracy(
    path: str | Path,
    curves: Sequence[Curve],
    baselines: Mapping[str, float] | None = None,
    *,
    xlabel: str,
    title: str,
    ticks: Sequence[float] | None = None,
    metric: Metric = ACCURACY,
    marks: Mapping[str, float] | None = None,
    trials: Trials | None = None,
) -> Path:
    """Draws accuracies, or another metric, as lines.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        curves: the lines; where they have ranges, the points are called means of seeds.
        baselines: label -> accuracy from 0 to 1, drawn level; one far from all curves is named in
            the legend.
        xlabel: what the lines run over.
        title: above the plot.
        ticks: marks of the horizontal axis; default, matplotlib's choice.
        metric: what the points are; shares are drawn in percent.
        marks: label -> x, drawn upright.
        trials: trials of a search, drawn behind the curves. Default: none.
    Returns: `path`.
    """
    factor = 100 if metric.is_share else 1
    levels = {label: factor * value for label, value in (baselines or {}).items()}
    values = [factor * value for curve in curves for _, value in curve.points]
    values += [factor * y for curve in curves for ends in curve.ranges.values() for y in ends]
    behind = [] if trials is None else [(x, factor * y) for x, y, _ in trials.finite]
    values += [y for _, y in behind]
    best = [max((y for _, y in curve.points), key=metric.key) for curve in curves]
    scale = axis_scale(
        values,
        kept=() if metric.is_share else best,  # an accuracy that collapses is what a sweep shows
        baselines=list(levels.values()),
        percent=metric.is_share,
    )
    figure = new_figure(title)
    axes = figure.subplots()
    families = list(dict.fromkeys(curve.family or curve.label for curve in curves))
    entries: list[tuple[Artist, str]] = []
    if trials is not None and behind:
        xs, ys = zip(*behind, strict=True)
        cloud = axes.scatter(xs, ys, s=14, color=FAINT, zorder=1)
        entries.append((cloud, trials.label))
    for curve in curves:
        position = families.index(curve.family or curve.label)
        x, accuracy = zip(*sorted(curve.points), strict=True)
        (line,) = axes.plot(x, [factor * value for value in accuracy], **line_style(position))
        if curve.dashed:
            line.set(linestyle="--", markerfacecolor="white")
        if not curve.joined:
            line.set(linestyle="none")
        _draw_ranges(axes, curve, factor, str(line.get_color()))
        entries.append((line, curve.label))
    entries += draw_baselines(axes, levels, scale, metric.is_share)
    entries += _draw_marks(axes, marks or {})
    apply_scale(axes, scale)
    notes = ["mean and range of the seeds"] if any(curve.ranges for curve in curves) else []
    ylabel = axis_label(metric.name, scale, metric.is_share, *notes)
    axes.set(xlabel=plain(xlabel), ylabel=ylabel)
    if ticks is not None:
        axes.set_xticks(ticks)
    axes.grid(alpha=0.3)
    add_legend(figure, entries)
    return save_figure(figure, Path(path))


def _draw_ranges(axes: Axes, curve: Curve, factor: float, color: str) -> None:
    """Bars from the least to the greatest value at each x where they differ."""
    for x, (low, high) in curve.ranges.items():
        if low == high:
            continue
        middle = (low + high) / 2
        axes.errorbar(
            x,
            factor * middle,
            yerr=factor * (high - middle),
            fmt="none",
            ecolor=color,
            elinewidth=1.2,
            capsize=5,
        )


def _draw_marks(axes: Axes, marks: Mapping[str, float]) -> list[tuple[Artist, str]]:
    """Upright lines, each in a style of its own."""
    styles = ((0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)))
    return [
        (axes.axvline(x, color="0.4", linewidth=1.2, linestyle=styles[i % 2]), label)
        for i, (label, x) in enumerate(marks.items())
    ]


def heat_map_charts(
    cells: Mapping[tuple[float, float], float],
    *,
    xlabel: str,
    ylabel: str,
    title: str,
    metric: Metric = ACCURACY,
) -> list[HeatMap]:
    """The chart of `plot_heat_map`, which takes the same arguments."""
    found = {
        (f"{y:g}", f"{x:g}"): cells.get((x, y))
        for y in sorted({y for _, y in cells}, reverse=True)
        for x in sorted({x for x, _ in cells})
    }
    name = f"{title}: {metric.name}"
    return [heat_map(found, title=name, xlabel=xlabel, ylabel=ylabel, percent=metric.is_share)]


@charted_as(heat_map_charts)
def plot_heat_map(
    path: str | Path,
    cells: Mapping[tuple[float, float], float],
    *,
    xlabel: str,
    ylabel: str,
    title: str,
    metric: Metric = ACCURACY,
) -> Path:
    """Draws accuracies, or another metric, over two settings, each cell with its number.

    Args:
        path: the file; its suffix picks the kind.
        cells: (x, y) -> accuracy from 0 to 1; pairs that are missing stay blank.
        xlabel: the setting that x is.
        ylabel: the setting that y is.
        title: above the plot.
        metric: what the cells are; shares are drawn in percent.
    Returns: `path`.
    """
    columns = sorted({x for x, _ in cells})
    rows = sorted({y for _, y in cells})
    factor = 100 if metric.is_share else 1
    values = [[factor * cells.get((x, y), float("nan")) for x in columns] for y in rows]
    least, most = (0, 100) if metric.is_share else _bounds(values)
    figure = new_figure(title, max(1.6 + 0.7 * len(columns), 4.0), 1.4 + 0.5 * len(rows))
    axes = figure.subplots()
    image = axes.imshow(
        values, origin="lower", cmap="viridis", vmin=least, vmax=most, aspect="auto"
    )
    axes.set_xticks(range(len(columns)), [f"{x:g}" for x in columns])
    axes.set_yticks(range(len(rows)), [f"{y:g}" for y in rows])
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if value == value:
                ink = "white" if value < least + 0.6 * (most - least) else "black"
                text = f"{value:.1f}" if metric.is_share else f"{value:.3g}"
                placed: dict[str, Any] = {"ha": "center", "va": "center", "gid": on_cell(i, j)}
                axes.text(j, i, text, color=ink, fontsize=8, **placed)
    axes.set(xlabel=plain(xlabel), ylabel=plain(ylabel))
    figure.colorbar(image, label=f"{metric.name} (%)" if metric.is_share else metric.name)
    return save_figure(figure, Path(path))


def _bounds(values: Sequence[Sequence[float]]) -> tuple[float, float]:
    found = [value for row in values for value in row if math.isfinite(value)]
    return min(found, default=0.0), max(found, default=1.0)
