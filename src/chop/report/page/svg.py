"""Charts as SVG with CSS classes; the style sheet of the page defines the colors.

Each mark has its numbers as `data-tip`, which the page shows on hover.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from chop.base.tables import printable
from chop.report.charts.chart import (
    Axis,
    Bar,
    BarChart,
    HeatMap,
    LineChart,
    Mark,
    Series,
    family_places,
)
from chop.report.charts.scale import axis_scale, scale_across, scale_upwards
from chop.report.page.arrows import beyond_axis, chart_arrows, visible_steps
from chop.report.page.ticks import Place

WIDE, NARROW, HEIGHT = 900.0, 380.0, 340.0
"""Drawing sizes in pixels: wide windows, narrow windows, height."""
LEFT, RIGHT, TOP, BOTTOM = 64.0, 16.0, 12.0, 44.0
BAR, GAP = 20.0, 8.0
CELL = 24.0
MIN_CELL, NUMBERED_CELL, MARGIN = 6.0, 34.0, 8.0
LETTER = 6.6
"""Estimated width of a letter in pixels."""
LONGEST = 40
LINE = 11.0
"""Line height in pixels."""
MAX_NUMBERED_CELLS = 400
"""Maximum number of heat-map cells with their numbers written in."""
SHADES = 9
COLORS = 6


def number(value: float, percent: bool = False) -> str:
    """Formats a number for an axis.

    >>> number(0.125, percent=True), number(1234567.0), number(0.00012)
    ('12.5 %', '1,234,567', '0.00012')
    """
    if percent:
        return f"{100 * value:.4g} %"
    if value and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.4g}"
    return f"{round(value):,}" if abs(value) >= 1e4 else f"{value:,.6g}"


def shortened(text: str, longest: int = LONGEST) -> str:
    """Shortens text from the start, because names of layers differ at the end."""
    text = printable(text)
    return text if len(text) <= longest else f"…{text[-longest + 1 :]}"


def _longest(width: float) -> int:
    """Returns the maximum length of row names that leaves most of the width to the chart."""
    return min(LONGEST, int(0.4 * width / LETTER))


def color_class(place: int) -> str:
    """Returns the CSS class of a series' color from the index of its family."""
    return "faint" if place < 0 else f"c{place % COLORS}"


def svg(chart: LineChart | BarChart | HeatMap, width: float = WIDE) -> str:
    """Draws a chart as an SVG element for a window width."""
    if isinstance(chart, LineChart):
        return _lines(chart, width)
    return _bars(chart, width) if isinstance(chart, BarChart) else _heat(chart, width)


def svg_element(width: float, height: float, label: str, parts: Iterator[str]) -> str:
    """Returns the SVG element that contains a drawing."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(printable(label))}">'
        f"{''.join(parts)}</svg>"
    )


def svg_text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "") -> str:
    """Returns an SVG text with its anchor at a point."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind and f" class={kind!r}"}>'
        f"{escape(printable(text))}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _beside(x: float, y: float, label: str, width: float) -> str:
    """Places the label of a vertical line, to the right of it if there is space."""
    is_left = x + 4 + LETTER * len(label) > width
    return svg_text(x - 4 if is_left else x + 4, y, label, "end" if is_left else "start", "name")


# --- lines ---------------------------------------------------------------------------------------


def _lines(chart: LineChart, width: float) -> str:
    x, y = places(chart, width)
    return svg_element(width, HEIGHT, chart.title, _line_parts(chart, x, y))


def places(chart: LineChart, width: float = WIDE) -> tuple[Place, Place]:
    """Returns the positions of the horizontal and the vertical axis."""
    y = Place(scale_upwards([chart]), HEIGHT - BOTTOM, TOP)
    # Long numbers at the ticks must not run into the name of the axis.
    left = max(LEFT, 28 + LETTER * max(len(number(tick)) for tick in y.ticks))
    return Place(scale_across(chart), left, width - RIGHT, chart.x.whole), y


def _line_parts(chart: LineChart, x: Place, y: Place) -> Iterator[str]:
    factor = chart.y.factor
    yield from _frame(x, y, chart.x, chart.y)
    visible = {k: v for k, v in chart.levels.items() if y.scale.shows(factor * v)}
    named = -LINE
    for label, level in sorted(visible.items(), key=lambda each: -each[1]):
        at = y.of(factor * level)
        yield _line(x.start, at, x.end, at, "level")
        # The label is above its line, or below if it would overlap the previous label.
        named = at - 4 if at - 4 - named >= LINE else max(at, named) + LINE
        yield svg_text(x.end, named, label, "end", "name")
    for label, limit in chart.limits.items():
        yield _line(x.of(limit), TOP, x.of(limit), HEIGHT - BOTTOM, "limit")
        yield _beside(x.of(limit), TOP + 10, label, x.end + RIGHT)
    arrows: list[float] = []
    for series, color in zip(chart.series, family_places(chart.series), strict=True):
        yield from _series(series, color, chart, x, y)
        for arrow in chart_arrows(series, chart.y, x, y, arrows):
            tip, text = _tip_text(series, arrow.mark, chart), number(arrow.mark.y, chart.y.percent)
            yield arrow.drawn(color_class(color), tip, text, x.end)


def _frame(x: Place, y: Place, across: Axis, up: Axis) -> Iterator[str]:
    for tick in y.ticks:
        yield _line(x.start, y.of(tick), x.end, y.of(tick), "grid")
        yield svg_text(x.start - 6, y.of(tick) + 4, number(tick), "end")
    for tick in x.ticks:
        yield _line(x.of(tick), TOP, x.of(tick), HEIGHT - BOTTOM, "grid")
        yield svg_text(x.of(tick), HEIGHT - BOTTOM + 16, number(tick))
    yield svg_text((x.start + x.end) / 2, HEIGHT - 8, across.label, kind="axis")
    name = f"{up.label} (%)" if up.percent else up.label
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield (
        f'<text transform="translate(14 {middle:.1f}) rotate(-90)" text-anchor="middle" '
        f'class="axis">{escape(printable(name))}</text>'
    )


def _series(series: Series, color: int, chart: LineChart, x: Place, y: Place) -> Iterator[str]:
    factor = chart.y.factor
    points = [(x.of(mark.x), y.of(factor * mark.y)) for mark in series.marks]
    kind = color_class(color)
    hidden = beyond_axis(series.marks, y, chart.y)
    if series.line != "none" and len(points) > 1:
        classes = f"line {kind}{' dashed' * series.dashed}"
        visible = visible_steps(points, hidden) if series.line == "steps" else points
        yield f'<path class="{classes}" d="{_path_data(visible, series.line)}"/>'
    few = len(points) <= 60 or series.line == "none"
    for mark, (at, height), is_hidden in zip(series.marks, points, hidden, strict=True):
        if is_hidden:
            continue
        ends = [y.of(factor * end) for end in (mark.low, mark.high) if end is not None]
        if len(ends) == 2 and few:
            yield _line(at, ends[0], at, ends[1], f"range {kind}")
        size = 4 if few else 1.5
        yield (
            f'<circle class="mark {kind}{" hollow" * series.dashed}" cx="{at:.1f}" '
            f'cy="{height:.1f}" r="{size}" data-tip="{escape(_tip_text(series, mark, chart))}"/>'
        )


def _path_data(points: Sequence[tuple[float, float]], line: str) -> str:
    parts = [f"M{points[0][0]:.1f},{points[0][1]:.1f}"]
    for x, y in points[1:]:
        parts.append(f"H{x:.1f}V{y:.1f}" if line == "steps" else f"L{x:.1f},{y:.1f}")
    return "".join(parts)


def _tip_text(series: Series, mark: Mark, chart: LineChart) -> str:
    """Returns the hover text of a mark."""
    interval = ""
    if mark.low is not None and mark.high is not None:
        ends = (number(end, chart.y.percent) for end in (mark.low, mark.high))
        interval = f" ({' to '.join(ends)})"
    lines = [
        mark.text if mark.text and mark.text != series.label else series.label,
        f"{chart.x.label} {number(mark.x, chart.x.percent)}",
        f"{chart.y.label} {number(mark.y, chart.y.percent)}{interval}",
    ]
    return "\n".join(map(printable, lines))


# --- bars ----------------------------------------------------------------------------------------


def _bars(chart: BarChart, width: float) -> str:
    labels = [shortened(bar.label, _longest(width)) for bar in chart.bars]
    left = 12 + LETTER * max(map(len, labels), default=0)
    height = TOP + (BAR + GAP) * len(chart.bars) + BOTTOM
    factor = chart.x.factor
    tops = [factor * max(sum(bar.parts), bar.high or 0) for bar in chart.bars]
    tops += [factor * limit for limit in chart.limits.values()]
    scale = axis_scale([0, max([*tops, 1e-12]) / 1.06], logarithm=False)
    x = Place(type(scale)(0.0, max(scale.high, max([*tops, 1e-12]))), left, width - RIGHT)
    return svg_element(width, height, chart.title, _bar_parts(chart, labels, x, height))


def _bar_parts(chart: BarChart, labels: Sequence[str], x: Place, height: float) -> Iterator[str]:
    factor, bottom = chart.x.factor, height - BOTTOM
    for tick in x.ticks:
        yield _line(x.of(tick), TOP, x.of(tick), bottom, "grid")
        yield svg_text(x.of(tick), bottom + 16, number(tick))
    name = f"{chart.x.label} (%)" if chart.x.percent else chart.x.label
    yield svg_text((x.start + x.end) / 2, height - 8, name, kind="axis")
    for place, (bar, label) in enumerate(zip(chart.bars, labels, strict=True)):
        top = TOP + GAP / 2 + place * (BAR + GAP)
        yield svg_text(x.start - 6, top + BAR / 2 + 4, label, "end")
        yield from _bar(bar, top, x, factor, chart)
    for label, limit in chart.limits.items():
        yield _line(x.of(factor * limit), TOP, x.of(factor * limit), bottom, "limit")
        yield _beside(x.of(factor * limit), TOP + 2, label, x.end + RIGHT)


def _bar(bar: Bar, top: float, x: Place, factor: int, chart: BarChart) -> Iterator[str]:
    start = 0.0
    for i, part in enumerate(bar.parts):
        name = f"{chart.parts[i]}: " if chart.parts else ""
        tip = f"{name}{number(part, chart.x.percent)}{_interval(bar, chart)}"
        left, right = x.of(factor * start), x.of(factor * (start + part))
        yield (
            f'<rect class="bar c{i % COLORS}{" hollow" * bar.hollow}" x="{left:.1f}" y="{top:.1f}" '
            f'width="{max(right - left, 0.5):.1f}" height="{BAR}" '
            f'data-tip="{escape(printable(bar.label))}\n{escape(tip)}"/>'
        )
        start += part
    if bar.low is not None and bar.high is not None:
        middle = top + BAR / 2
        yield _line(x.of(factor * bar.low), middle, x.of(factor * bar.high), middle, "whisker")


def _interval(bar: Bar, chart: BarChart) -> str:
    if bar.low is None or bar.high is None:
        return ""
    return f" ({number(bar.low, chart.x.percent)} to {number(bar.high, chart.x.percent)})"


# --- heat maps -----------------------------------------------------------------------------------


def shades(values: Sequence[float | None], log: bool = False) -> list[int | None]:
    """Returns the color level of each number, 0 (lowest) to 8 (highest). None for no number.

    >>> shades([0.0, None, 5.0, 10.0])
    [0, None, 4, 8]
    """
    levels = [
        _shaded(value, log) if value is not None and math.isfinite(value) else None
        for value in values
    ]
    finite = [level for level in levels if level is not None]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = high - low if high > low else math.inf
    return [
        None if level is None else round((SHADES - 1) * (level - low) / span) for level in levels
    ]


def _shaded(value: float, log: bool) -> float:
    return math.log10(max(value, 1e-12)) if log else value


def _heat(chart: HeatMap, whole: float) -> str:
    rows, columns = (
        [shortened(row, _longest(whole)) for row in chart.rows],
        [shortened(c, 24) for c in chart.columns],
    )
    left = 12 + LETTER * max(map(len, rows), default=0)
    count = max(len(columns), 1)
    width = max(MIN_CELL, (whole - left - MARGIN) / count)
    longest = max((len(text) for row in chart.texts or () for text in row), default=0)
    least = max(NUMBERED_CELL, 8 + LETTER * longest)
    has_numbers = len(rows) * len(columns) <= MAX_NUMBERED_CELLS and width >= least
    slanted = LETTER * max(map(len, columns), default=0) > width - 4
    bottom = (14 + LETTER * max(map(len, columns), default=0) * 0.75) if slanted else 20.0
    bottom += 18.0 if chart.xlabel else 0.0
    # The slanted label of the last column extends beyond the column.
    beyond = LETTER * 0.75 * len(columns[-1]) - width / 2 if slanted and columns else 0.0
    width = max(MIN_CELL, min(width, (whole - left - max(MARGIN, beyond)) / count))
    size = left + width * count + max(MARGIN, beyond), TOP + CELL * len(rows) + bottom
    parts = _heat_parts(chart, rows, columns, (left, width), has_numbers, slanted)
    return svg_element(max(whole, size[0]), size[1], chart.title, parts)


def _heat_parts(
    chart: HeatMap,
    rows: Sequence[str],
    columns: Sequence[str],
    cell: tuple[float, float],
    has_numbers: bool,
    slanted: bool,
) -> Iterator[str]:
    left, width = cell
    kinds = iter(shades([value for row in chart.values for value in row], chart.log))
    for i, row in enumerate(chart.values):
        top = TOP + CELL * i
        yield svg_text(left - 6, top + CELL / 2 + 4, rows[i], "end")
        for j, (value, kind) in enumerate(zip(row, kinds, strict=False)):
            if kind is None or value is None:
                continue
            text = number(value, chart.percent)
            tip = f"{printable(chart.rows[i])}\n{printable(chart.columns[j])}\n{text}"
            tip += f"\n{printable(chart.texts[i][j])}" if chart.texts else ""
            x = left + width * j
            yield (
                f'<rect class="cell h{kind}" x="{x:.1f}" y="{top:.1f}" width="{width - 1:.1f}" '
                f'height="{CELL - 1}" data-tip="{escape(tip)}"/>'
            )
            if has_numbers:
                brief = f"{100 * value:.1f}" if chart.percent else f"{value:.2g}"
                brief = chart.texts[i][j] if chart.texts else brief
                yield svg_text(x + width / 2, top + CELL / 2 + 4, brief, kind=f"on{kind}")
    foot = TOP + CELL * len(rows) + 14
    for j, column in enumerate(columns):
        x = left + width * (j + 0.5)
        if slanted:
            yield (
                f'<text transform="translate({x:.1f} {foot - 4:.1f}) rotate(45)">'
                f"{escape(column)}</text>"
            )
        else:
            yield svg_text(x, foot, column)
    if chart.xlabel:
        bottom = foot + (LETTER * max(map(len, columns)) * 0.75 if slanted else 0) + 16
        yield svg_text(left + width * len(columns) / 2, bottom, chart.xlabel, kind="axis")


def legend(labels: Mapping[str, str]) -> str:
    """Returns legend entries from label -> CSS class."""
    entries = (
        f'<li><span class="swatch {kind}"></span>{escape(printable(label))}</li>'
        for label, kind in labels.items()
    )
    return f'<ul class="legend">{"".join(entries)}</ul>' if labels else ""
