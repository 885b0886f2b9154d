"""Captions of charts, of one or two sentences each."""

from __future__ import annotations

from collections.abc import Mapping

from chop.report.charts.chart import Axis, BarChart, Chart, HeatMap, Histograms, LineChart
from chop.report.charts.scale import AxisScale, scale_across, scale_upwards
from chop.report.page.svg import number


def caption(chart: Chart) -> str:
    """Describes the axes of a chart and the meaning of its lines, bars and colors.

    Args:
        chart: the chart. Graphs return "", because their page element has its own caption.
    """
    if isinstance(chart, LineChart):
        return _describe_lines(chart)
    if isinstance(chart, BarChart):
        return _describe_bars(chart)
    if isinstance(chart, HeatMap):
        return _describe_cells(chart)
    if isinstance(chart, Histograms):
        return (
            "Gray: count of each bin, on a logarithmic scale. Colored: the values that the "
            "format represents."
        )
    return ""


def _describe_lines(chart: LineChart) -> str:
    x, y = scale_across(chart), scale_upwards([chart])
    sentences = [f"Vertical axis: {_axis(chart.y, y)}. Horizontal axis: {_axis(chart.x, x)}."]
    marks = [mark for each in chart.series for mark in each.marks]
    if any(mark.low is not None and mark.low != mark.high for mark in marks):
        sentences.append(f"Error bars: {chart.spread or 'range or interval'}.")
    if any(each.faint for each in chart.series):
        sentences.append("Gray: all measured points.")
    visible = {k: level for k, level in chart.levels.items() if y.shows(chart.y.factor * level)}
    sentences += _levels("Dashed", visible, chart.y)
    off = {k: level for k, level in chart.levels.items() if k not in visible}
    sentences += _levels("Off the axis", off, chart.y)
    sentences += _levels("Dotted", chart.limits, chart.x)
    return " ".join(sentences)


def _describe_bars(chart: BarChart) -> str:
    sentences = [f"Bar length: {chart.x.label}."]
    if any(bar.low is not None for bar in chart.bars):
        sentences.append(f"Error bars: {chart.spread or 'range or interval'}.")
    if any(bar.hollow for bar in chart.bars):
        sentences.append("Hollow bars: no significant difference.")
    return " ".join([*sentences, *_levels("Dotted", chart.limits, chart.x)])


def _describe_cells(chart: HeatMap) -> str:
    axes = [f"Rows: {chart.ylabel}."] if chart.ylabel else []
    axes += [f"Columns: {chart.xlabel}."] if chart.xlabel else []
    more = "more bits" if chart.texts else "larger the number"
    scale = " (logarithmic color scale)" if chart.log else ""
    # Low colors are near the page's: dark in the dark theme, light in the light one.
    return " ".join([*axes, f"The more a cell stands out, the {more}{scale}."])


def _axis(axis: Axis, scale: AxisScale) -> str:
    return axis.label if scale.kind == "linear" else f"{axis.label} (logarithmic scale)"


def _levels(kind: str, levels: Mapping[str, float], axis: Axis) -> list[str]:
    named = [
        f"{label} ({number(float(f'{value:.4g}'), axis.percent)})"
        for label, value in levels.items()
    ]
    return [f"{kind}: {', '.join(named)}."] if named else []
