"""Arrows on a line chart for marks beyond the vertical axis, with their values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from chop.report.charts.chart import Axis, Mark, Series
from chop.report.charts.scale import MAX_ARROWS, marks_beyond
from chop.report.page.ticks import Place

ROOM = 80.0
"""Width in pixels of an arrow with its value."""


@dataclass(frozen=True)
class _Arrow:
    """Arrow at an end of the vertical axis.

    Attributes:
        mark: mark beyond the end.
        at: x of its tip in pixels.
        end: y of its tip in pixels.
        back: vertical distance from tip to base in pixels.
        row: row of its value among overlapping ones. None if there is no space for it.
    """

    mark: Mark
    at: float
    end: float
    back: float
    row: int | None

    def drawn(self, kind: str, tip: str, text: str, right: float) -> str:
        """Returns the arrow as SVG, with its value next to it.

        Args:
            kind: CSS class of its color.
            tip: text shown on hover.
            text: value next to the arrow.
            right: x of the right end of the chart in pixels.
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
    """Clips step points to where they enter the axis."""
    if not hidden[0] or all(hidden):
        return list(points)
    first = hidden.index(False)
    return [(points[first][0], points[0][1]), *points[first:]]


def beyond_axis(marks: Sequence[Mark], y: Place, axis: Axis) -> list[bool]:
    """Returns whether each mark lies beyond the vertical axis."""
    return [not y.scale.shows(axis.factor * mark.y) for mark in marks]


def chart_arrows(
    series: Series, axis: Axis, x: Place, y: Place, others: list[float]
) -> Iterator[_Arrow]:
    """Returns an arrow for each mark beyond the axis; a step level gets one, at its end.

    Args:
        series: series of the marks.
        axis: vertical axis.
        x: positions on the horizontal axis.
        y: positions on the vertical axis.
        others: positions of earlier arrows of the chart, extended by the new ones.
    """
    for right, mark in marks_beyond(series, axis, y.scale):
        at, end = x.of(right), y.of(axis.factor * mark.y)
        row = sum(abs(at - other) < ROOM for other in others)
        others.append(at)
        is_below = abs(end - y.start) < abs(end - y.end)
        is_labeled = series.line != "none" and row < MAX_ARROWS
        yield _Arrow(mark, at, end, -8.0 if is_below else 8.0, row if is_labeled else None)
