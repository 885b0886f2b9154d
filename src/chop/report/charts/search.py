"""Charts of a search: fronts, and how much each choice matters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chop.errors import ConfigError
from chop.report.charts.chart import Axis, Bar, BarChart, LineChart, Mark, Series
from chop.statistics.intervals import LEVEL_TEXT, interval_of_estimate

MOST_BARS = 30


@dataclass(frozen=True)
class Cloud:
    """Points of one panel of a front.

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
    """Returns charts of what was measured and its front, one for each number against the first.

    Args:
        clouds: points of each chart. Those that are not finite are left out.
        ylabel: the number that all panels share.
        title: title of the charts.
        percent: y are shares of 1 and drawn as percentages.
    Raises:
        ConfigError: there is no panel.
    """
    if not clouds:
        raise ConfigError("front: expected at least one number beside the first.")
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


def importance_charts(
    shares: Mapping[str, float], errors: Mapping[str, float] | None = None, *, title: str
) -> list[BarChart]:
    """Returns a chart of how much each choice matters, as bars, in the order given from the top.

    Args:
        shares: choice -> share of 1; of more than 30, those from the 30th on share one bar.
        errors: choice -> standard error of its share; its interval is drawn. Default: none.
        title: title of the chart.
    Raises:
        ConfigError: there is no choice.
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
    """The shares; those from the 30th on together where there are more."""
    if len(shares) <= MOST_BARS:
        return dict(shares)
    first = list(shares.items())[: MOST_BARS - 1]
    rest = list(shares.values())[MOST_BARS - 1 :]
    return {**dict(first), f"{len(rest)} others together": sum(rest)}
