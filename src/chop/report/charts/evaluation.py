"""Charts of an evaluation: divergence from the float model, and task scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chop.report.charts.chart import Axis, Bar, BarChart, LineChart, Mark, Series
from chop.statistics.intervals import LEVEL_TEXT, interval_of_estimate

POINTS = 500
"""Maximum number of points of the divergence curve."""
Score = tuple[float, float | None]
"""Share and its standard error."""


@dataclass(frozen=True)
class TaskShares:
    """Metric of a task for a model and its reference.

    Attributes:
        label: label of the bars.
        own: score of the model.
        reference: score of the float model, or None.
    """

    label: str
    own: Score
    reference: Score | None


def divergence_charts(divergences: Sequence[float], title: str) -> list[LineChart]:
    """Returns a chart of the share of answers with at least a given divergence.

    The divergence is that of the model's answer from the float model's.

    Args:
        divergences: KL divergence of each answer in nats. Values of 0 and infinity count but are
            not drawn.
        title: title of the chart.
    """
    marks = tuple(Mark(x, y) for x, y in _curve(divergences))
    y = Axis("share of answers with at least this divergence")
    return [LineChart(title, Axis("KL divergence of an answer (nats)"), y, (Series("", marks),))]


def _curve(divergences: Sequence[float]) -> list[tuple[float, float]]:
    """Returns (divergence, share of answers at least as far) points, largest divergence first."""
    count, ranked = len(divergences), sorted(divergences, reverse=True)
    places = sorted({round(i * (count - 1) / (POINTS - 1)) for i in range(POINTS)})
    return [(ranked[i], (i + 1) / count) for i in places if 0 < ranked[i] < float("inf")]


def score_charts(bars: Sequence[TaskShares], title: str) -> list[BarChart]:
    """Returns a bar chart of task scores, with the float model above the model."""
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
