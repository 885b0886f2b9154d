"""Charts of an evaluation: divergences from the float model, and scores of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chop.report.charts.chart import Axis, Bar, BarChart, LineChart, Mark, Series
from chop.statistics.intervals import LEVEL_TEXT, interval_of_estimate

POINTS = 500
"""Most points of the curve of divergences."""
Score = tuple[float, float | None]
"""A share and its standard error."""


@dataclass(frozen=True)
class TaskShares:
    """A metric of a task.

    Attributes:
        label: beside the bars.
        own: of the model.
        reference: of the float model; None where there is none.
    """

    label: str
    own: Score
    reference: Score | None


def divergence_charts(divergences: Sequence[float], title: str) -> list[LineChart]:
    """Returns a chart of the share of answers that are as far from the float model's, or farther.

    Args:
        divergences: KL of each answer in nats; those of 0 and infinity count, and are not drawn.
        title: title of the chart.
    """
    marks = tuple(Mark(x, y) for x, y in _curve(divergences))
    y = Axis("share of answers as far or farther")
    return [LineChart(title, Axis("KL divergence of an answer (nats)"), y, (Series("", marks),))]


def _curve(divergences: Sequence[float]) -> list[tuple[float, float]]:
    """Divergences from the largest, and the share of answers that are at least as far."""
    count, ranked = len(divergences), sorted(divergences, reverse=True)
    places = sorted({round(i * (count - 1) / (POINTS - 1)) for i in range(POINTS)})
    return [(ranked[i], (i + 1) / count) for i in places if 0 < ranked[i] < float("inf")]


def score_charts(bars: Sequence[TaskShares], title: str) -> list[BarChart]:
    """Returns a chart of the shares of right answers, the float model's above the model's."""
    drawn = []
    for bar in bars:
        if bar.reference is not None:
            drawn.append(_bar(f"{bar.label}, float model", bar.reference))
        drawn.append(_bar(bar.label, bar.own))
    axis = Axis("share", percent=True, log=False)
    return [BarChart(title, axis, tuple(drawn), spread=f"{LEVEL_TEXT} interval")]


def _bar(label: str, score: Score) -> Bar:
    value, error = score
    ends = (None, None) if error is None else interval_of_estimate(value, error)
    return Bar(label, (value,), *ends)
