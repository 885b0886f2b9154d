"""Numbers of a chart as a table for reading and copying."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chop.report.charts.chart import BarChart, Chart, HeatMap, Histograms, LineChart
from chop.report.document import PageTable, page_table
from chop.report.page.svg import number
from chop.report.report import Cell, Table


def get_numbers(chart: Chart) -> PageTable | None:
    """Returns the numbers of a chart as a table, or None for a graph."""
    if isinstance(chart, LineChart):
        rows = list(_line_rows(chart))
    elif isinstance(chart, BarChart):
        rows = list(_bar_rows(chart))
    elif isinstance(chart, HeatMap):
        rows = list(_cell_rows(chart))
    elif isinstance(chart, Histograms):
        rows = [
            {
                "tensor": panel.title,
                "from": panel.low,
                "to": panel.high,
                "numbers": sum(panel.counts),
            }
            for panel in chart.panels
        ]
    else:
        return None
    return page_table(Table(chart.title, rows)) if rows else None


def _line_rows(chart: LineChart) -> Iterator[Mapping[str, Any]]:
    marks = [mark for series in chart.series for mark in series.marks]
    has_ends = any(mark.low is not None for mark in marks)
    for series in chart.series:
        for mark in series.marks:
            row = {
                "series": series.label,
                chart.x.label: _cell(mark.x, chart.x.percent),
                _beside(chart): _cell(mark.y, chart.y.percent),
            }
            if has_ends:
                row["low"] = _cell(mark.low, chart.y.percent)
                row["high"] = _cell(mark.high, chart.y.percent)
            yield row
    for label, level in chart.levels.items():
        row = {"series": label, chart.x.label: None}
        row[_beside(chart)] = _cell(level, chart.y.percent)
        yield {**row, "low": None, "high": None} if has_ends else row


def _beside(chart: LineChart) -> str:
    """Returns the name of the y column, made distinct from that of x."""
    return chart.y.label if chart.y.label != chart.x.label else f"{chart.y.label} (up)"


def _bar_rows(chart: BarChart) -> Iterator[Mapping[str, Any]]:
    names = chart.parts or (chart.x.label,)
    has_ends = any(bar.low is not None for bar in chart.bars)
    for bar in chart.bars:
        row: dict[str, Any] = {"": bar.label}
        row |= {n: _cell(part, chart.x.percent) for n, part in zip(names, bar.parts, strict=False)}
        if has_ends:
            row["low"] = _cell(bar.low, chart.x.percent)
            row["high"] = _cell(bar.high, chart.x.percent)
        yield row


def _cell_rows(chart: HeatMap) -> Iterator[Mapping[str, Any]]:
    for name, values in zip(chart.rows, chart.values, strict=True):
        cells = zip(chart.columns, values, strict=True)
        yield {chart.ylabel or " ": name, **{c: _cell(v, chart.percent) for c, v in cells}}


def _cell(value: float | None, percent: bool) -> Cell | None:
    return None if value is None else Cell(value, number(value, percent))
