"""Arrows of a line chart for marks beyond the vertical axis, with their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from chop.report.charts.chart import Axis, Mark, Series
from chop.report.charts.scale import MOST_ARROWS, marks_beyond
from chop.report.page.ticks import Place

ROOM = 80.0
"""Pixels of an arrow with its number."""


@dataclass(frozen=True)
class _Arrow:
    """An arrow to an end of the upright axis.

    Attributes:
        mark: mark beyond the end.
        at: pixels to the right of its point.
        end: pixels downwards of its point.
        back: pixels from its point to its base.
        row: row of its number among those that would overlap. None if there is no room for it.
    """

    mark: Mark
    at: float
    end: float
    back: float
    row: int | None

    def drawn(self, kind: str, tip: str, text: str, right: float) -> str:
        """The arrow as an SVG element, with its number beside it.

        Args:
            kind: class of its color.
            tip: shown where it is pointed at.
            text: its number.
            right: pixels of the right end of the chart.
        """
        shape = f"M{self.at:.1f},{self.end:.1f}l-5,{self.back}h10z"
        arrow = f'<path class="mark {kind}" d="{shape}" data-tip="{escape(tip)}"/>'
        if self.row is None:
            return arrow
        side, anchor = (-8, "end") if self.at + ROOM > right else (8, "start")
        x, y = self.at + side, self.end + self.back * (0.25 + 1.5 * self.row)
        named = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="name on-line"'
        return f"{arrow}<text {named}>{escape(text)}</text>"


def visible_steps(
    points: Sequence[tuple[float, float]], hidden: Sequence[bool]
) -> list[tuple[float, float]]:
    """Points of steps from where they come onto the axis, at the end that they come from."""
    if not hidden[0] or all(hidden):
        return list(points)
    first = hidden.index(False)
    return [(points[first][0], points[0][1]), *points[first:]]


def beyond_axis(marks: Sequence[Mark], y: Place, axis: Axis) -> list[bool]:
    """Returns true for each mark that lies beyond the upright axis."""
    return [not y.scale.shows(axis.factor * mark.y) for mark in marks]


def chart_arrows(
    series: Series, axis: Axis, x: Place, y: Place, others: list[float]
) -> Iterator[_Arrow]:
    """An arrow for each mark beyond the axis; of a level of steps one, where the next level begins.

    Args:
        series: series of the marks.
        axis: upwards.
        x: places to the right.
        y: places upwards.
        others: places of the chart's earlier arrows, to which these are added.
    """
    for right, mark in marks_beyond(series, axis, y.scale):
        at, end = x.of(right), y.of(axis.factor * mark.y)
        row = sum(abs(at - other) < ROOM for other in others)
        others.append(at)
        is_below = abs(end - y.start) < abs(end - y.end)
        is_labeled = series.line != "none" and row < MOST_ARROWS
        yield _Arrow(mark, at, end, -8.0 if is_below else 8.0, row if is_labeled else None)
