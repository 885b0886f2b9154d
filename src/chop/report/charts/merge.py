"""Merging of the charts of several runs onto common axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from chop.report.charts.chart import BarChart, Chart, LineChart, Series


def merged(charts: Mapping[str, Chart]) -> Chart | None:
    """Merges charts of several runs; returns None for kinds without common axes.

    Args:
        charts: name of the run -> its chart, all of one class.
    """
    first = next(iter(charts.values()))
    title = "\n".join(dict.fromkeys(chart.title for chart in charts.values()))
    if isinstance(first, LineChart):
        line_charts = {
            name: chart for name, chart in charts.items() if isinstance(chart, LineChart)
        }
        series = [
            _label_series(name, each)
            for name, chart in line_charts.items()
            for each in chart.series
        ]
        levels = {
            f"{name}: {k}": y
            for name, chart in line_charts.items()
            for k, y in chart.levels.items()
        }
        limits = _united({name: chart.limits for name, chart in line_charts.items()})
        all_required = [chart.kept for chart in line_charts.values()]
        required = tuple(y for each in all_required for y in each) if all(all_required) else ()
        lines = replace(first, title=title, series=tuple(series), levels=levels, limits=limits)
        return replace(lines, kept=required)
    if isinstance(first, BarChart):
        others = {name: chart for name, chart in charts.items() if isinstance(chart, BarChart)}
        bars = [
            replace(bar, label=f"{name}: {bar.label}")
            for name, chart in others.items()
            for bar in chart.bars
        ]
        limits = _united({name: chart.limits for name, chart in others.items()})
        return replace(first, title=title, bars=tuple(bars), limits=limits)
    return None


def _united(limits: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Merges limits of several runs; limits that differ get the names of their runs."""
    first = next(iter(limits.values()))
    if all(each == first for each in limits.values()):
        return dict(first)
    return {f"{name}: {k}": x for name, each in limits.items() for k, x in each.items()}


def _label_series(name: str, series: Series) -> Series:
    """Returns a series with the name and the color of its run."""
    family = f"{name}: {series.family or series.label}"
    return replace(series, label=f"{name}: {series.label}", family=family)
