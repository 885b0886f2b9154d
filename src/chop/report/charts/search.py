"""Charts of a search: Pareto fronts and importance of the choices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chop.errors import ConfigError
from chop.report.charts.chart import Axis, Bar, BarChart, LineChart, Mark, Series
from chop.statistics.intervals import LEVEL_TEXT, interval_of_estimate

MAX_BARS = 30


@dataclass(frozen=True)
class Cloud:
    """Points of one panel of a Pareto front.

    Attributes:
        xlabel: label of the horizontal axis.
        points: (x, y) of all trials.
        front: nondominated points.
        limit: budget of x, or None.
        texts: text of each point, shown on hover. Empty for no texts.
    """

    xlabel: str
    points: Sequence[tuple[float, float]]
    front: Sequence[tuple[float, float]]
    limit: float | None = None
    texts: Sequence[str] = ()


def front_charts(
    clouds: Sequence[Cloud], *, ylabel: str, title: str, percent: bool = True
) -> list[LineChart]:
    """Returns scatter charts of the trials and their front, one for each number after the first.

    Args:
        clouds: points of each chart. Non-finite points are skipped.
        ylabel: label of the vertical axis of all panels.
        title: title of the charts.
        percent: draws y, a share of 1, as percentages.
    Raises:
        ConfigError: if there are no panels.
    """
    if not clouds:
        raise ConfigError("front: expected at least one objective in addition to the first.")
    charts = []
    for cloud in clouds:
        labeled = list(zip(cloud.points, cloud.texts, strict=False))
        texts = dict(reversed(labeled))  # equal points get the text of the first one
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


def importance_charts(
    shares: Mapping[str, float], errors: Mapping[str, float] | None = None, *, title: str
) -> list[BarChart]:
    """Returns a bar chart of the importance of each choice, in the given order.

    Args:
        shares: choice -> share of 1. Beyond 30 choices, the rest share one bar.
        errors: choice -> standard error of its share, drawn as an interval. Default: no intervals.
        title: title of the chart.
    Raises:
        ConfigError: if there are no choices.
    """
    if not shares:
        raise ConfigError("importances: expected at least one choice.")
    bars = []
    for label, share in _bars(shares).items():
        error = (errors or {}).get(label)
        ends = (None, None) if error is None else interval_of_estimate(share, error)
        bars.append(Bar(label, (share,), *ends))
    axis = Axis("importance", percent=True, log=False)
    return [BarChart(title, axis, tuple(bars), spread=f"{LEVEL_TEXT} interval")]


def _bars(shares: Mapping[str, float]) -> dict[str, float]:
    """Returns the shares, with those from the 30th on merged into one."""
    if len(shares) <= MAX_BARS:
        return dict(shares)
    first = list(shares.items())[: MAX_BARS - 1]
    rest = list(shares.values())[MAX_BARS - 1 :]
    return {**dict(first), f"{len(rest)} others together": sum(rest)}
