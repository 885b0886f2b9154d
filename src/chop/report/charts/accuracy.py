"""Line chart of a metric over a setting."""

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
        label: text of its legend entry.
        points: (x, accuracy from 0 to 1), in any order.
        family: name of its group: curves of one family share color and marker. Default: the label.
        dashed: draws the curve dashed, as the weaker member of its family.
        ranges: x -> lowest and highest accuracy at x, drawn as an error bar.
        joined: connects the points with a line.
    """

    label: str
    points: Sequence[Point]
    family: str | None = None
    dashed: bool = False
    ranges: Mapping[float, tuple[float, float]] = field(default_factory=dict)
    joined: bool = True


@dataclass(frozen=True)
class Trials:
    """Trials of a search, drawn as grey points behind the curves of a chart.

    Attributes:
        points: (x, accuracy from 0 to 1) of each trial.
        texts: text of each point, shown on hover. Empty for no texts.
        label: label in the legend.
    """

    points: Sequence[Point]
    texts: Sequence[str] = ()
    label: str = "every trial"

    @property
    def finite(self) -> list[tuple[float, float, str]]:
        """Yields x, accuracy and text of each point with finite coordinates."""
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
    """Returns a line chart of accuracies or another metric.

    Args:
        curves: the lines. If they have ranges, the caption calls the points means over seeds.
        baselines: label -> accuracy from 0 to 1, drawn as a horizontal line. A baseline far from
            all curves appears only in the legend.
        xlabel: label of the horizontal axis.
        title: title of the chart.
        ticks: ticks of the horizontal axis in a figure. Default: round numbers.
        metric: metric of the points. Shares are drawn in percent.
        marks: label -> x, drawn as a vertical line.
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
    finite_values = [[y for _, y in curve.points if math.isfinite(y)] for curve in curves]
    best = [max(each, key=metric.key) for each in finite_values if each]
    return [
        LineChart(
            title,
            x,
            y,
            tuple(series),
            dict(baselines or {}),
            dict(marks or {}),
            spread="mean and range of the seeds",
            # For shares nothing is required, because sweeps should show accuracy collapses.
            kept=() if metric.is_share else tuple(best),
        )
    ]
