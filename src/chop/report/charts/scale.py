"""Axis scales of charts: limits, logarithms, and values off the axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from chop.report.charts.chart import Axis, LineChart, Mark, Series

DECADE = 10
MARGIN = 0.06
"""Share of the span left free above and below."""
CUT_MARGINS = 2.0
"""Number of margins at a cut end of an axis, as space for arrows."""
FLATTENED = 1 / 8
"""Share of the span below which an outlier counts as flattening the other numbers."""
OPTIONAL = 1 / 2
"""Share of the span by which optional numbers may lengthen an axis."""
MIN_LEVELS = 3
"""Minimum number of levels that remain after a cut."""
MIN_PERCENT = 2.0
"""Minimum span of an axis of shares, in percentage points."""
FARTHEST = 2.0
"""Distance in spans beyond which a baseline appears only in the legend."""
MAX_DECADES = 8
MAX_ARROWS = 6
"""Maximum number of arrows with values next to them."""


@dataclass(frozen=True)
class AxisScale:
    """Range and scale of a plot's axis.

    Attributes:
        low: the lower end.
        high: the upper end.
        kind: "linear", "log", or "symlog" (logarithmic with 0).
        threshold: smallest number that "symlog" distinguishes from 0.
        below: numbers below the lower end, ascending.
        above: numbers above the upper end, ascending.
    """

    low: float
    high: float
    kind: str = "linear"
    threshold: float = 1.0
    below: tuple[float, ...] = ()
    above: tuple[float, ...] = ()

    def shows(self, value: float) -> bool:
        """Returns whether a number lies between the ends."""
        return self.low <= value <= self.high


def axis_scale(
    values: Sequence[float],
    *,
    required: Sequence[float] = (),
    optional: Sequence[float] = (),
    baselines: Sequence[float] = (),
    percent: bool = False,
    logarithm: bool = True,
) -> AxisScale:
    """Chooses an axis on which differences between the numbers are visible.

    Numbers that are not shares and span more than a decade get a logarithmic scale. A linear axis
    cuts off outliers that would leave the others, with all of `required`, less than an eighth of
    it, and `optional` numbers that would lengthen it by more than a half. A baseline is on the axis
    if it is within twice the span of the numbers.

    Args:
        values: numbers to plot. Non-finite numbers are ignored.
        required: numbers among `values` that must be on the axis. Empty for all.
        optional: further numbers, which may lie off the axis.
        baselines: levels drawn in addition to the numbers.
        percent: the numbers are percentages.
        logarithm: allows a logarithmic scale.
    """
    finite = sorted(value for value in values if math.isfinite(value)) or [0.0, 1.0]
    further = [value for value in optional if math.isfinite(value)]
    whole = sorted([*finite, *further])
    if logarithm and not percent and _spans_a_decade(whole):
        return _logarithmic(whole, baselines)
    on_axis = _without_outliers(finite, [value for value in required if math.isfinite(value)])
    on_axis = _with_nearby(on_axis, further)
    low, high = on_axis[0], on_axis[-1]
    span = max(high - low, MIN_PERCENT if percent else 0.02 * max(abs(low), abs(high)) or 1.0)
    near = [b for b in baselines if low - FARTHEST * span <= b <= high + FARTHEST * span]
    low, high = min([low, *near]), max([high, *near])
    missing = max(0.0, span - (high - low)) / 2
    low, high = low - missing, high + missing
    margin = MARGIN * (high - low)
    below = tuple(value for value in whole if value < on_axis[0])
    above = tuple(value for value in whole if value > on_axis[-1])
    return AxisScale(
        low - margin * (CUT_MARGINS if below else 1),
        high + margin * (CUT_MARGINS if above else 1),
        below=below,
        above=above,
    )


def _spans_a_decade(finite: Sequence[float]) -> bool:
    """Returns whether non-negative numbers differ by more than a factor of ten."""
    positive = [value for value in finite if value > 0]
    return finite[0] >= 0 and bool(positive) and positive[-1] > DECADE * positive[0]


def _logarithmic(finite: Sequence[float], baselines: Sequence[float]) -> AxisScale:
    ends = [value for value in (*finite, *baselines) if value > 0 and math.isfinite(value)]
    low, high = min(ends), max(ends)
    room = (high / low) ** MARGIN
    if finite[0] > 0:
        return AxisScale(low / room, high * room, "log")
    return AxisScale(-low / 4, high * room, "symlog", threshold=low)


def _with_nearby(on_axis: list[float], optional: list[float]) -> list[float]:
    """Returns the sorted numbers on the axis, extended by nearby optional numbers."""
    room = OPTIONAL * (on_axis[-1] - on_axis[0])
    near = [value for value in optional if on_axis[0] - room <= value <= on_axis[-1] + room]
    return sorted([*on_axis, *near])


def _without_outliers(finite: Sequence[float], required: Sequence[float]) -> list[float]:
    """Removes outliers beyond the widest gap if they flatten the side with all of `required`."""
    levels = sorted(set(finite))
    if not required or len(levels) <= MIN_LEVELS:
        return list(finite)
    low, high = max(pairwise(levels), key=lambda pair: pair[1] - pair[0])
    for cluster in ([v for v in finite if v >= high], [v for v in finite if v <= low]):
        has_required = cluster[0] <= min(required) and max(required) <= cluster[-1]
        is_most = len(set(cluster)) >= max(MIN_LEVELS, len(levels) / 2)
        is_flat = cluster[-1] - cluster[0] < FLATTENED * (levels[-1] - levels[0])
        if has_required and is_most and is_flat:
            return cluster
    return list(finite)


def scale_across(chart: LineChart) -> AxisScale:
    """Returns the scale of a chart's horizontal axis."""
    xs = [mark.x for series in chart.series for mark in series.marks]
    return axis_scale([*xs, *chart.limits.values()], logarithm=chart.x.log)


def scale_upwards(charts: Sequence[LineChart]) -> AxisScale:
    """Returns the scale of the vertical axis that charts share.

    Args:
        charts: one or more charts with the same vertical axis.
    """
    axis = charts[0].y
    factor = axis.factor
    drawn = [series for chart in charts for series in chart.series]
    strong = [m.y for each in drawn if not each.faint for m in each.marks if not m.optional]
    required = [y for chart in charts for y in chart.kept]
    if not required and any(each.faint for each in drawn):
        required = strong
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
        required=[factor * y for y in required],
        optional=optional,
        baselines=[factor * level for chart in charts for level in chart.levels.values()],
        percent=axis.percent,
        logarithm=axis.log,
    )


def marks_beyond(series: Series, axis: Axis, scale: AxisScale) -> list[tuple[float, Mark]]:
    """Returns the marks beyond the vertical axis with the positions of their arrows.

    A step beyond the axis gets one arrow, at the point where the next level enters the axis.
    """
    arrows: list[tuple[float, Mark]] = []
    first: Mark | None = None
    for place, mark in enumerate(series.marks, 1):
        is_beyond = not scale.shows(axis.factor * mark.y)
        if series.line != "steps":
            arrows += [(mark.x, mark)] * is_beyond
            continue
        first = first or (mark if is_beyond else None)
        if first and (not is_beyond or place == len(series.marks)):
            arrows.append((mark.x, first))
            first = None
    return arrows


def decades(low: float, high: float) -> list[float]:
    """Returns powers of ten from `low` to `high`, with multiples of 2 and 5 if they are few.

    >>> decades(0.5, 20.0)
    [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, math.ceil((last - first) / MAX_DECADES))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    candidates = [
        factor * 10.0**power for power in range(first, last + 1, step) for factor in factors
    ]
    return [value for value in candidates if low * 0.999 <= value <= high * 1.001]
