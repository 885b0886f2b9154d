"""Plots of an evaluation, each one call and one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chop.report.charts import Axis, Bar, BarChart, LineChart, Mark, Series, charted_as
from chop.report.figures import PALETTE, WIDTH, add_legend, new_figure, plain, save_figure
from chop.statistics.intervals import LEVEL_TEXT, interval_of_estimate

POINTS = 500
"""Of the curve of divergences at most."""
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
    """The chart of `plot_divergences`, which takes the same arguments."""
    marks = tuple(Mark(x, y) for x, y in _curve(divergences))
    y = Axis("answers as far or farther", percent=True)
    return [LineChart(title, Axis("KL divergence of an answer (nats)"), y, (Series("", marks),))]


def _curve(divergences: Sequence[float]) -> list[tuple[float, float]]:
    """Divergences from the largest, and the share of answers that are at least as far."""
    count, ranked = len(divergences), sorted(divergences, reverse=True)
    places = sorted({round(i * (count - 1) / (POINTS - 1)) for i in range(POINTS)})
    return [(ranked[i], (i + 1) / count) for i in places if 0 < ranked[i] < float("inf")]


@charted_as(divergence_charts)
def plot_divergences(path: str | Path, divergences: Sequence[float], title: str) -> Path:
    """Draws what share of the answers is farther from the float model's than a divergence.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        divergences: KL of each answer in nats; those of 0 and infinity count, and are not drawn.
        title: above the plot.
    Returns: `path`.
    """
    drawn = _curve(divergences)
    figure = new_figure(title)
    axes = figure.subplots()
    axes.plot([x for x, _ in drawn], [100 * y for _, y in drawn], color=PALETTE[0])
    if drawn:
        axes.set(xscale="log", yscale="log")
    axes.set(
        xlabel="KL divergence of an answer (nats)",
        ylabel="answers with this divergence or more (%)",
    )
    axes.grid(alpha=0.3)
    return save_figure(figure, Path(path))


def score_charts(bars: Sequence[TaskShares], title: str) -> list[BarChart]:
    """The chart of `plot_scores`, which takes the same arguments."""
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


def _reaches(scores: Sequence[Score]) -> list[list[float]]:
    """Percentage points from each value to the lower and the upper end of its interval."""
    ends = [interval_of_estimate(value, error or 0) for value, error in scores]
    pairs = list(zip(scores, ends, strict=True))
    return [[100 * abs(end[side] - value) for (value, _), end in pairs] for side in (0, 1)]


@charted_as(score_charts)
def plot_scores(path: str | Path, bars: Sequence[TaskShares], title: str) -> Path:
    """Draws shares of right answers with their intervals, the float model's above the model's.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        bars: from above to below.
        title: above the plot.
    Returns: `path`.
    """
    beside = any(bar.reference is not None for bar in bars)
    height = 0.35 if beside else 0.6
    figure = new_figure(title, WIDTH, 1.4 + 0.55 * len(bars))
    axes, entries = figure.subplots(), []
    kinds = ("float model", "model") if beside else ("model",)
    for number, kind in enumerate(kinds):
        scores = [bar.own if kind == "model" else bar.reference or (0.0, None) for bar in bars]
        places = [i + (number - 0.5) * height * beside for i in range(len(bars))]
        drawn = axes.barh(
            places,
            [100 * value for value, _ in scores],
            xerr=_reaches(scores),
            height=height,
            color=PALETTE[number],
            capsize=3,
        )
        entries.append((drawn.patches[0], kind))
    axes.set_yticks(range(len(bars)), [plain(bar.label) for bar in bars])
    axes.invert_yaxis()
    axes.set(xlabel=f"share (%), with {LEVEL_TEXT} interval")
    axes.grid(alpha=0.3, axis="x")
    if beside:
        add_legend(figure, entries)
    return save_figure(figure, Path(path))
