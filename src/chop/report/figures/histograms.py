"""Histograms as figures, above the representable values of number formats."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from chop.report.charts.chart import Histogram, Histograms
from chop.report.charts.value_grids import MAX_ROWS
from chop.report.figures.style import (
    LEGEND_POINTS,
    PALETTE,
    WIDTH,
    Entry,
    add_legend,
    new_figure,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_INCHES = 1.1
STRIPS = 0.45
"""Share of a panel's height for the grids."""
LONGEST_TITLE = 34
GRAY = "0.7"
MIN_COUNT = 0.5
"""Lower end of the count axis, so that a bar of count 1 is visible."""


def histogram_figure(chart: Histograms) -> Figure:
    """Returns a figure with rows of panels, in two columns if there are many rows."""
    count = len(chart.panels) // chart.abreast
    columns = 1 if count <= MAX_ROWS else 2
    rows = math.ceil(count / columns)
    width = WIDTH if columns == 1 else 1.6 * WIDTH
    figure = new_figure(chart.title, width, 0.3 + ROW_INCHES * rows)
    axes = figure.subplots(rows, columns * chart.abreast, squeeze=False)
    entries: list[Entry] = []
    for place in range(rows * columns * chart.abreast):
        row, column = divmod(place, chart.abreast)
        panel = axes[row % rows, column + chart.abreast * (row // rows)]
        if place < len(chart.panels):
            drawn = _draw(panel, chart.panels[place])
            entries = entries or drawn
        else:
            panel.remove()
    add_legend(figure, entries)
    return figure


def _draw(axes: Axes, panel: Histogram) -> list[Entry]:
    """Draws one panel and returns its legend entries."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    counts = [max(count, MIN_COUNT) for count in panel.counts]
    step = (panel.high - panel.low) / len(counts)
    edges = [panel.low + step * i for i in range(len(counts) + 1)]
    bars = axes.stairs(counts, edges, baseline=MIN_COUNT, fill=True, color=GRAY)
    entries: list[Entry] = [(bars, "counts (logarithmic)")]
    most = 2 * max([*panel.counts, 1])
    bottom = MIN_COUNT * (MIN_COUNT / most) ** (STRIPS / (1 - STRIPS))
    axes.set(xlim=panel.visible_range, yscale="log", ylim=(bottom, most))
    for locator in (axes.yaxis.set_major_locator, axes.yaxis.set_minor_locator):
        locator(NullLocator())
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=6)
    cut = len(panel.title) > LONGEST_TITLE
    text = f"...{panel.title[-LONGEST_TITLE:]}" if cut else panel.title
    axes.set_title(plain(text), fontsize=LEGEND_POINTS - 2, pad=2)
    height = STRIPS / (len(panel.grids) + 0.3)
    for i, label in enumerate(panel.grids):
        place = STRIPS - (i + 1) * height, 0.8 * height
        entries.append((_draw_strip(axes, panel, label, place, PALETTE[i % len(PALETTE)]), label))
    return entries


def _draw_strip(
    axes: Axes, panel: Histogram, label: str, place: tuple[float, float], color: str
) -> Artist:
    """Draws marks at the values of a format, or a bar if there are too many.

    Args:
        axes: axes of the panel.
        panel: the histogram.
        label: name of the format.
        place: bottom and height, as shares of the panel.
        color: color of the strip.
    """
    values, (bottom, height) = panel.grids[label], place
    across = axes.get_xaxis_transform()
    ends = (values[0], values[-1]) if values else (panel.low, panel.low)
    line = axes.hlines(bottom, *ends, transform=across, color=color, linewidth=1.5)
    if panel.is_covered(label):
        axes.fill_between(ends, bottom, bottom + height, transform=across, color=color, linewidth=0)
    else:
        axes.vlines(values, bottom, bottom + height, transform=across, color=color, linewidth=0.7)
    return line
