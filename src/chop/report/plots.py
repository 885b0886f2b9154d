"""Plots of measured rows, each one call and one file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chop.report.figures import save_figure
from chop.train.tasks import CLASSIFICATION, Metric

ACCURACY = CLASSIFICATION.metric
Point = tuple[float, float]
MARKERS = "osD^vP*X"
MAX_CURVES_INSIDE = 4
BASELINES = (("black", "--"), ("grey", ":"))


@dataclass(frozen=True)
class Curve:
    """One line of a plot.

    Attributes:
        label: what the legend says.
        points: (x, accuracy from 0 to 1), in any order.
        family: curves of one family share colour and marker; default, the label.
        dashed: for the weaker member of a family.
    """

    label: str
    points: Sequence[Point]
    family: str | None = None
    dashed: bool = False


def plot_accuracy(
    path: str | Path,
    curves: Sequence[Curve],
    baselines: Mapping[str, float] | None = None,
    *,
    xlabel: str,
    title: str,
    ticks: Sequence[float] | None = None,
    metric: Metric = ACCURACY,
) -> Path:
    """Draws accuracies, or another metric, as lines.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        curves: the lines.
        baselines: label -> accuracy from 0 to 1, drawn level: the first dashed, the next dotted.
        xlabel: what the lines run over.
        title: above the plot.
        ticks: marks of the horizontal axis; default, matplotlib's choice.
        metric: what the points are; shares are drawn in percent.
    Returns: `path`.
    """
    from matplotlib.figure import Figure

    inches = 6.4 if len(curves) <= MAX_CURVES_INSIDE else 8.4
    figure = Figure(figsize=(inches, 4.0), layout="constrained")
    axes = figure.subplots()
    factor = 100 if metric.is_share else 1
    for (label, accuracy), (colour, style) in zip(
        (baselines or {}).items(), BASELINES, strict=False
    ):
        axes.axhline(factor * accuracy, color=colour, linestyle=style, linewidth=1, label=label)
    families = list(dict.fromkeys(curve.family or curve.label for curve in curves))
    for curve in curves:
        position = families.index(curve.family or curve.label)
        x, accuracy = zip(*sorted(curve.points), strict=True)
        axes.plot(
            x,
            [factor * value for value in accuracy],
            color=f"C{position % 10}",
            marker=MARKERS[position % len(MARKERS)],
            markerfacecolor="white" if curve.dashed else None,
            linestyle="--" if curve.dashed else "-",
            label=curve.label,
        )
    axes.set(xlabel=xlabel, ylabel=_axis(metric), title=title)
    if metric.is_share:
        axes.set_ylim(0, 103)
    if ticks is not None:
        axes.set_xticks(ticks)
    axes.grid(alpha=0.3)
    if len(curves) > MAX_CURVES_INSIDE:
        figure.legend(loc="outside right upper", fontsize="small")
    else:
        axes.legend(loc="best", fontsize="small")
    return save_figure(figure, Path(path))


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
    from matplotlib.figure import Figure

    columns = sorted({x for x, _ in cells})
    rows = sorted({y for _, y in cells})
    factor = 100 if metric.is_share else 1
    values = [[factor * cells.get((x, y), float("nan")) for x in columns] for y in rows]
    least, most = (0, 100) if metric.is_share else _bounds(values)
    figure = Figure(figsize=(1.6 + 0.7 * len(columns), 1.4 + 0.5 * len(rows)), layout="constrained")
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
                told = f"{value:.1f}" if metric.is_share else f"{value:.3g}"
                axes.text(j, i, told, ha="center", va="center", color=ink, fontsize=8)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    figure.colorbar(image, label=_axis(metric))
    return save_figure(figure, Path(path))


def _axis(metric: Metric) -> str:
    return f"{metric.name} (%)" if metric.is_share else metric.name


def _bounds(values: Sequence[Sequence[float]]) -> tuple[float, float]:
    found = [value for row in values for value in row if math.isfinite(value)]
    return min(found, default=0.0), max(found, default=1.0)
