"""Plots of searches, each one call and one file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chop.errors import ConfigError
from chop.report.axes import apply_scale, axis_label, axis_scale
from chop.report.charts import Axis, Bar, BarChart, LineChart, Mark, Series, charted_as
from chop.report.figures import (
    FAINT,
    HEIGHT,
    PALETTE,
    WIDTH,
    add_legend,
    new_figure,
    plain,
    save_figure,
)
from chop.statistics.intervals import LEVEL_TEXT, interval_of_estimate

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

MOST_BARS = 30


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
        labeled = list(zip(cloud.points, cloud.texts, strict=False))
        texts = dict(reversed(labeled))  # equal points have the text of the first
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

    Axes are those of `chop.report.best_so_far.plot_best_so_far`.

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
        (axes.scatter(*points, s=14, color=FAINT), "measured"),
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
    axis = Axis("importance", percent=True, log=False)
    return [BarChart(title, axis, tuple(bars), spread=f"{LEVEL_TEXT} interval")]


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
        errors: choice -> standard error of its share; its interval is drawn. Default: none.
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
    axes.set(xlabel="importance (%)" + (f", with {LEVEL_TEXT} interval" if errors else ""))
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    return save_figure(figure, Path(path))


def _ends(share: float, error: float | None) -> tuple[float, float] | None:
    """The ends of a share's interval; None without an error."""
    return None if error is None else interval_of_estimate(share, error)


def _bars(shares: Mapping[str, float]) -> dict[str, float]:
    """The shares; those from the 30th on together where there are more."""
    if len(shares) <= MOST_BARS:
        return dict(shares)
    first = list(shares.items())[: MOST_BARS - 1]
    rest = list(shares.values())[MOST_BARS - 1 :]
    return {**dict(first), f"{len(rest)} others together": sum(rest)}
