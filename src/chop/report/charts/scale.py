"""Scales of charts: limits from the data, logarithms, and what lies beyond the ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from chop.report.charts.chart import Axis, LineChart, Mark, Series

DECADE = 10
MARGIN = 0.06
"""The share of the span that is left free above and below."""
CUT_MARGINS = 2.0
"""Number of margins at an end where the axis is cut, as space for arrows."""
FLATTENED = 1 / 8
"""The share of the span below which numbers beyond the widest gap are flattened by the others."""
OPTIONAL = 1 / 2
"""The share of the span by which optional numbers may lengthen an axis."""
LEAST_LEVELS = 3
"""Levels that must remain where others are cut off."""
LEAST_PERCENT = 2.0
"""Percentage points that an axis of shares spans at least."""
FARTHEST = 2.0
"""Spans of the data beyond which a baseline is named and not drawn."""
MOST_DECADES = 8
MOST_ARROWS = 6
"""Arrows up to which each has its value beside it."""


@dataclass(frozen=True)
class AxisScale:
    """Range and scale of a plot's axis.

    Attributes:
        low: the lower end.
        high: the upper end.
        kind: "linear", "log", or "symlog": logarithmic, with room for 0.
        threshold: of "symlog": the smallest number that is distinguished from 0.
        below: numbers under the lower end, the least first.
        above: numbers over the upper end, the least first.
    """

    low: float
    high: float
    kind: str = "linear"
    threshold: float = 1.0
    below: tuple[float, ...] = ()
    above: tuple[float, ...] = ()

    def shows(self, value: float) -> bool:
        """Returns true if a number lies between the ends."""
        return self.low <= value <= self.high


def axis_scale(
    values: Sequence[float],
    *,
    kept: Sequence[float] = (),
    optional: Sequence[float] = (),
    baselines: Sequence[float] = (),
    percent: bool = False,
    logarithm: bool = True,
) -> AxisScale:
    """The axis on which the differences between numbers can be seen.

    Numbers that are no shares and span more than a decade take logarithms. On a linear axis,
    numbers are cut off where the others, all of `kept` among them, would take less than an eighth
    of it; those of `optional` where they would lengthen it by more than a half. A baseline is on
    the axis unless it is more than twice the span of the numbers away.

    Args:
        values: to be shown; those that are not finite are not looked at.
        kept: those of them that must be on the axis; none: all must.
        optional: further numbers, which may lie off the axis.
        baselines: levels to be shown beside them.
        percent: the numbers are percentages.
        logarithm: whether logarithms may be taken.
    """
    finite = sorted(value for value in values if math.isfinite(value)) or [0.0, 1.0]
    further = [value for value in optional if math.isfinite(value)]
    whole = sorted([*finite, *further])
    if logarithm and not percent and _spans_a_decade(whole):
        return _logarithmic(whole, baselines)
    shown = _without_far(finite, [value for value in kept if math.isfinite(value)])
    shown = _with_near(shown, further)
    low, high = shown[0], shown[-1]
    span = max(high - low, LEAST_PERCENT if percent else 0.02 * max(abs(low), abs(high)) or 1.0)
    near = [b for b in baselines if low - FARTHEST * span <= b <= high + FARTHEST * span]
    low, high = min([low, *near]), max([high, *near])
    missing = max(0.0, span - (high - low)) / 2
    low, high = low - missing, high + missing
    margin = MARGIN * (high - low)
    below = tuple(value for value in whole if value < shown[0])
    above = tuple(value for value in whole if value > shown[-1])
    return AxisScale(
        low - margin * (CUT_MARGINS if below else 1),
        high + margin * (CUT_MARGINS if above else 1),
        below=below,
        above=above,
    )


def _spans_a_decade(finite: Sequence[float]) -> bool:
    """Returns true if numbers that are not negative differ by more than a factor of ten."""
    positive = [value for value in finite if value > 0]
    return finite[0] >= 0 and bool(positive) and positive[-1] > DECADE * positive[0]


def _logarithmic(finite: Sequence[float], baselines: Sequence[float]) -> AxisScale:
    ends = [value for value in (*finite, *baselines) if value > 0 and math.isfinite(value)]
    low, high = min(ends), max(ends)
    room = (high / low) ** MARGIN
    if finite[0] > 0:
        return AxisScale(low / room, high * room, "log")
    return AxisScale(-low / 4, high * room, "symlog", threshold=low)


def _with_near(shown: list[float], optional: list[float]) -> list[float]:
    """The numbers shown, with the optional ones that lie near, the least first."""
    room = OPTIONAL * (shown[-1] - shown[0])
    near = [value for value in optional if shown[0] - room <= value <= shown[-1] + room]
    return sorted([*shown, *near])


def _without_far(finite: Sequence[float], kept: Sequence[float]) -> list[float]:
    """The side of the widest gap that has all of `kept` and most levels, if it is flattened."""
    levels = sorted(set(finite))
    if not kept or len(levels) <= LEAST_LEVELS:
        return list(finite)
    low, high = max(pairwise(levels), key=lambda pair: pair[1] - pair[0])
    for side in ([v for v in finite if v >= high], [v for v in finite if v <= low]):
        holds_kept = side[0] <= min(kept) and max(kept) <= side[-1]
        is_most = len(set(side)) >= max(LEAST_LEVELS, len(levels) / 2)
        is_flat = side[-1] - side[0] < FLATTENED * (levels[-1] - levels[0])
        if holds_kept and is_most and is_flat:
            return side
    return list(finite)


def scale_across(chart: LineChart) -> AxisScale:
    """Returns the scale of the axis to the right of a chart."""
    xs = [mark.x for series in chart.series for mark in series.marks]
    return axis_scale([*xs, *chart.limits.values()], logarithm=chart.x.log)


def scale_upwards(charts: Sequence[LineChart]) -> AxisScale:
    """Returns the scale of the upright axis that charts have in common.

    Args:
        charts: one or more, with the same upright axis.
    """
    axis = charts[0].y
    factor = axis.factor
    drawn = [series for chart in charts for series in chart.series]
    strong = [m.y for each in drawn if not each.faint for m in each.marks if not m.optional]
    kept = [y for chart in charts for y in chart.kept]
    if not kept and any(each.faint for each in drawn):
        kept = strong
    values, optional = (
        [
            factor * y
            for each in drawn
            for mark in each.marks
            if mark.optional is kind
            for y in (mark.y, mark.low, mark.high)
            if y is not None
        ]
        for kind in (False, True)
    )
    return axis_scale(
        values,
        kept=[factor * y for y in kept],
        optional=optional,
        baselines=[factor * level for chart in charts for level in chart.levels.values()],
        percent=axis.percent,
        logarithm=axis.log,
    )


def marks_beyond(series: Series, axis: Axis, scale: AxisScale) -> list[tuple[float, Mark]]:
    """Returns the marks beyond the upright axis, each with the place of its arrow.

    Steps that are beyond the axis have one arrow for their first level, where they enter the axis.
    """
    found: list[tuple[float, Mark]] = []
    first: Mark | None = None
    for place, mark in enumerate(series.marks, 1):
        is_beyond = not scale.shows(axis.factor * mark.y)
        if series.line != "steps":
            found += [(mark.x, mark)] * is_beyond
            continue
        first = first or (mark if is_beyond else None)
        if first and (not is_beyond or place == len(series.marks)):
            found.append((mark.x, first))
            first = None
    return found


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from `low` to `high`, and 2 and 5 times these where they are few.

    >>> decades(0.5, 20.0)
    [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, math.ceil((last - first) / MOST_DECADES))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    found = [factor * 10.0**power for power in range(first, last + 1, step) for factor in factors]
    return [value for value in found if low * 0.999 <= value <= high * 1.001]
