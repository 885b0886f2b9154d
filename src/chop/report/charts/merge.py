"""Charts of several runs as one, on the same axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from chop.report.charts.chart import BarChart, Chart, LineChart, Series


def merged(charts: Mapping[str, Chart]) -> Chart | None:
    """One chart of several runs' charts on the same axes; None where their kind has no common axes.

    Args:
        charts: name of the run -> its chart; all of one class.
    """
    first = next(iter(charts.values()))
    title = "\n".join(dict.fromkeys(chart.title for chart in charts.values()))
    if isinstance(first, LineChart):
        found = {name: chart for name, chart in charts.items() if isinstance(chart, LineChart)}
        series = [_of(name, each) for name, chart in found.items() for each in chart.series]
        levels = {
            f"{name}: {k}": y for name, chart in found.items() for k, y in chart.levels.items()
        }
        limits = _united({name: chart.limits for name, chart in found.items()})
        all_kept = [chart.kept for chart in found.values()]
        kept = tuple(y for each in all_kept for y in each) if all(all_kept) else ()
        lines = replace(first, title=title, series=tuple(series), levels=levels, limits=limits)
        return replace(lines, kept=kept)
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
    """The limits of several runs, with the names of the runs where they differ."""
    first = next(iter(limits.values()))
    if all(each == first for each in limits.values()):
        return dict(first)
    return {f"{name}: {k}": x for name, each in limits.items() for k, x in each.items()}


def _of(name: str, series: Series) -> Series:
    """A series with the name of its run, and a color of its own."""
    family = f"{name}: {series.family or series.label}"
    return replace(series, label=f"{name}: {series.label}", family=family)
