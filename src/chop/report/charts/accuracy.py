"""Chart of measured rows: a metric over a setting, as lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chop.report.charts.chart import Axis, LineChart, Mark, Series
from chop.train.metric import Metric
from chop.train.tasks import CLASSIFICATION

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
    """Returns a chart of accuracies, or another metric, as lines.

    Args:
        curves: the lines; where they have ranges, the points are called means of seeds.
        baselines: label -> accuracy from 0 to 1, drawn level; one far from all curves is named in
            the legend.
        xlabel: what the lines run over.
        title: title of the chart.
        ticks: marks of the horizontal axis in a figure. Default: round numbers.
        metric: what the points are; shares are drawn in percent.
        marks: label -> x, drawn upright.
        trials: trials of a search, drawn behind the curves. Default: none.
    """
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
    whole = ticks is not None and all(float(tick).is_integer() for tick in ticks)
    x = Axis(xlabel, whole=whole, log=False, ticks=tuple(ticks or ()))
    y = Axis(metric.name, percent=metric.is_share)
    found = [[y for _, y in curve.points if math.isfinite(y)] for curve in curves]
    best = [max(each, key=metric.key) for each in found if each]
    return [
        LineChart(
            title,
            x,
            y,
            tuple(series),
            dict(baselines or {}),
            dict(marks or {}),
            spread="mean and range of the seeds",
            # An accuracy that collapses is what a sweep shows.
            kept=() if metric.is_share else tuple(best),
        )
    ]
