"""Captions of charts, one or two sentences each."""

from __future__ import annotations

from collections.abc import Mapping

from chop.report.charts.chart import Axis, BarChart, Chart, HeatMap, Histograms, LineChart
from chop.report.charts.scale import AxisScale, scale_across, scale_upwards
from chop.report.page.svg import number


def caption(chart: Chart) -> str:
    """Describes a chart: its axes and the meaning of its lines, bars and colors.

    Args:
        chart: the chart; a graph says it on its own page element.
    """
    if isinstance(chart, LineChart):
        return _of_lines(chart)
    if isinstance(chart, BarChart):
        return _of_bars(chart)
    if isinstance(chart, HeatMap):
        return _of_cells(chart)
    if isinstance(chart, Histograms):
        return (
            "Gray: how many numbers are in each bin, on a logarithmic scale. Colored: the values "
            "of the format."
        )
    return ""


def _of_lines(chart: LineChart) -> str:
    x, y = scale_across(chart), scale_upwards([chart])
    said = [f"Upwards: {_axis(chart.y, y)}. To the right: {_axis(chart.x, x)}."]
    marks = [mark for each in chart.series for mark in each.marks]
    if any(mark.low is not None and mark.low != mark.high for mark in marks):
        said.append(f"Upright bars: {chart.spread or 'range or interval'}.")
    if any(each.faint for each in chart.series):
        said.append("Gray: all that was measured.")
    shown = {k: level for k, level in chart.levels.items() if y.shows(chart.y.factor * level)}
    said += _levels("Dashed", shown, chart.y)
    off = {k: level for k, level in chart.levels.items() if k not in shown}
    said += _levels("Beyond the axis", off, chart.y)
    said += _levels("Dotted", chart.limits, chart.x)
    return " ".join(said)


def _of_bars(chart: BarChart) -> str:
    said = [f"Length of a bar: {chart.x.label}."]
    if any(bar.low is not None for bar in chart.bars):
        said.append(f"Thin lines: {chart.spread or 'range or interval'}.")
    if any(bar.hollow for bar in chart.bars):
        said.append("Hollow: no difference is shown.")
    return " ".join([*said, *_levels("Dotted", chart.limits, chart.x)])


def _of_cells(chart: HeatMap) -> str:
    axes = [f"Rows: {chart.ylabel}."] if chart.ylabel else []
    axes += [f"Columns: {chart.xlabel}."] if chart.xlabel else []
    more = "more bits" if chart.texts else "greater the number"
    scale = ", by its logarithm" if chart.log else ""
    return " ".join([*axes, f"The stronger the color, the {more}{scale}."])


def _axis(axis: Axis, scale: AxisScale) -> str:
    return axis.label if scale.kind == "linear" else f"{axis.label} (logarithmic scale)"


def _levels(kind: str, levels: Mapping[str, float], axis: Axis) -> list[str]:
    named = [
        f"{label} ({number(float(f'{value:.4g}'), axis.percent)})"
        for label, value in levels.items()
    ]
    return [f"{kind}: {', '.join(named)}."] if named else []
