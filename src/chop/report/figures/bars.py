"""Bar charts as figures: stacked parts, intervals and limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chop.report.charts.chart import Bar, BarChart
from chop.report.figures.style import PALETTE, WIDTH, Entry, add_legend, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAR_INCHES = 0.3


def bar_figure(charts: Sequence[BarChart]) -> Figure:
    """Returns a figure with the charts side by side."""
    bars = charts[0].bars
    figure = new_figure(charts[0].title, WIDTH, 1.2 + BAR_INCHES * len(bars))
    panels = figure.subplots(1, len(charts), sharey=True, squeeze=False)[0]
    entries = [
        entry for axes, chart in zip(panels, charts, strict=True) for entry in _draw(axes, chart)
    ]
    panels[0].set_yticks(range(len(bars)), [plain(bar.label) for bar in bars], fontsize="small")
    panels[0].invert_yaxis()
    add_legend(figure, entries)
    return figure


def _draw(axes: Axes, chart: BarChart) -> list[Entry]:
    """Draws a panel and returns its legend entries."""
    factor = chart.x.factor
    for place, bar in enumerate(chart.bars):
        _draw_bar(axes, bar, place, factor)
    entries: list[Entry] = [
        (axes.patches[i], label) for i, label in enumerate(chart.parts if chart.bars else ())
    ]
    for label, limit in chart.limits.items():
        line = axes.axvline(factor * limit, color="black", linestyle="--", linewidth=1)
        entries.append((line, f"{label} ({factor * limit:.4g}{' %' * chart.x.percent})"))
    has_ends = any(bar.low is not None for bar in chart.bars)
    spread = f", with {chart.spread}" if has_ends and chart.spread else ""
    axes.set_xlabel(plain(f"{chart.x.label}{' (%)' * chart.x.percent}{spread}"))
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    return entries


def _draw_bar(axes: Axes, bar: Bar, place: int, factor: int) -> None:
    start = 0.0
    for i, part in enumerate(bar.parts):
        color = PALETTE[i % len(PALETTE)]
        filled = "none" if bar.hollow else color
        style: dict[str, Any] = {"color": filled, "edgecolor": color, "height": 0.7}
        axes.barh(place, factor * part, left=factor * start, **style)
        start += part
    if bar.low is not None and bar.high is not None:
        ends = [[factor * max(0.0, start - bar.low)], [factor * max(0.0, bar.high - start)]]
        axes.errorbar(factor * start, place, xerr=ends, color="black", elinewidth=1.2, capsize=3)
