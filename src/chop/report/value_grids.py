"""Histograms of the numbers in a model's layers, above the grids of formats that may hold them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chop.errors import ConfigError
from chop.report import charts
from chop.report.figures import (
    LEGEND_POINTS,
    PALETTE,
    WIDTH,
    add_legend,
    new_figure,
    plain,
    save_figure,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

MOST_ROWS = 7
"""Rows of panels, so that a figure is at most 1,500 pixels high."""
MOST_LAYERS = 2 * MOST_ROWS
ROW_INCHES = 1.1
STRIPS = 0.45
"""The share of a panel's height that the grids take."""
MOST_MARKS = 100
"""Values of a grid in a panel up to which each has a mark; more are drawn as a bar."""
LONGEST_TITLE = 34
GRAY = "0.7"
LEAST_COUNT = 0.5
"""Where the bars begin, so that one of a single number is seen."""


@dataclass(frozen=True)
class Histogram:
    """Counts of a tensor's numbers.

    Attributes:
        title: above the panel; the end of a long one is shown.
        counts: how many numbers are in each bin.
        edges: ends of the bins, one more, rising.
    """

    title: str
    counts: Sequence[float]
    edges: Sequence[float]


@dataclass(frozen=True)
class EvenGrid:
    """Values of a fixed-point format: `low`, `low + step` ... `high`."""

    label: str
    low: float
    high: float
    step: float


def value_grid_charts(
    layers: Sequence[Sequence[Histogram]], grids: Sequence[EvenGrid], *, title: str
) -> list[charts.Histograms]:
    """The chart of `plot_value_grids`, which takes the same arguments."""
    panels = []
    for panel in (panel for layer in layers for panel in layer):
        low, high = panel.edges[0], panel.edges[-1]
        values = {grid.label: _values_between(grid, *_ends(panel)) for grid in grids}
        panels.append(charts.Histogram(panel.title, tuple(panel.counts), low, high, values))
    return [charts.Histograms(title, tuple(panels))]


def _values_between(grid: EvenGrid, low: float, high: float) -> tuple[float, ...]:
    """The grid's values between two ends; those at the ends alone where they are too many."""
    first = math.ceil(max(grid.low, low) / grid.step)
    last = math.floor(min(grid.high, high) / grid.step)
    found = range(first, last + 1)
    return tuple(grid.step * k for k in (found if len(found) <= MOST_MARKS else (first, last)))


@charts.charted_as(value_grid_charts)
def plot_value_grids(
    path: str | Path,
    layers: Sequence[Sequence[Histogram]],
    grids: Sequence[EvenGrid],
    *,
    title: str,
) -> Path:
    """Draws a row of panels for each layer: a histogram, and under it the values of each format.

    Counts are on a logarithmic scale. A number outside the marks saturates, one between two marks
    is rounded to the nearer.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        layers: of each layer its panels, as many of each; at most `MOST_LAYERS`.
        grids: the formats, the first on top.
        title: above the figure.
    Returns: `path`.
    Raises:
        ConfigError: no layer, or too many.
    """
    if not 0 < len(layers) <= MOST_LAYERS:
        raise ConfigError(f"plot_value_grids: got {len(layers)} layers, expected 1 to 14.")
    beside = 1 if len(layers) <= MOST_ROWS else 2
    rows, panels = math.ceil(len(layers) / beside), len(layers[0])
    width = WIDTH if beside == 1 else 1.6 * WIDTH
    figure = new_figure(title, width, 0.3 + ROW_INCHES * rows)
    axes = figure.subplots(rows, beside * panels, squeeze=False)
    entries: list[tuple[Artist, str]] = []
    for place in range(rows * beside):
        row, column = place % rows, panels * (place // rows)
        for i in range(panels):
            panel = axes[row, column + i]
            if place < len(layers):
                drawn = _draw_panel(panel, layers[place][i], grids)
                entries = entries or drawn
            else:
                panel.remove()
    add_legend(figure, entries)
    return save_figure(figure, Path(path))


def _draw_panel(
    axes: Axes, histogram: Histogram, grids: Sequence[EvenGrid]
) -> list[tuple[Artist, str]]:
    """Draws one panel; returns what the legend names."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    low, high = _ends(histogram)
    counts = [max(count, LEAST_COUNT) for count in histogram.counts]
    bars = axes.stairs(counts, histogram.edges, baseline=LEAST_COUNT, fill=True, color=GRAY)
    entries: list[tuple[Artist, str]] = [(bars, "counts (logarithmic)")]
    most = 2 * max([*histogram.counts, 1])
    bottom = LEAST_COUNT * (LEAST_COUNT / most) ** (STRIPS / (1 - STRIPS))
    axes.set(xlim=(low, high), yscale="log", ylim=(bottom, most))
    for locator in (axes.yaxis.set_major_locator, axes.yaxis.set_minor_locator):
        locator(NullLocator())
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=6)
    cut = len(histogram.title) > LONGEST_TITLE
    text = f"...{histogram.title[-LONGEST_TITLE:]}" if cut else histogram.title
    axes.set_title(plain(text), fontsize=LEGEND_POINTS - 2, pad=2)
    height = STRIPS / (len(grids) + 0.3)
    for i, grid in enumerate(grids, 1):
        ends = max(grid.low, low), min(grid.high, high)
        bottom, color = STRIPS - i * height, PALETTE[(i - 1) % len(PALETTE)]
        entries.append((_draw_grid(axes, grid, ends, bottom, 0.8 * height, color), grid.label))
    return entries


def _draw_grid(
    axes: Axes,
    grid: EvenGrid,
    ends: tuple[float, float],
    bottom: float,
    height: float,
    color: str,
) -> Artist:
    """Marks at the grid's values between two ends; a bar where they are too many."""
    across = axes.get_xaxis_transform()
    line = axes.hlines(bottom, *ends, transform=across, color=color, linewidth=1.5)
    first, last = math.ceil(ends[0] / grid.step), math.floor(ends[1] / grid.step)
    if last - first < MOST_MARKS:
        values = [grid.step * k for k in range(first, last + 1)]
        axes.vlines(values, bottom, bottom + height, transform=across, color=color, linewidth=0.7)
    else:
        bar = [bottom] * 2, [bottom + height] * 2
        axes.fill_between(ends, *bar, transform=across, color=color, linewidth=0)
    return line


def _ends(histogram: Histogram) -> tuple[float, float]:
    """The range of the bins that are not empty, with a margin."""
    taken = [i for i, count in enumerate(histogram.counts) if count]
    if not taken:
        return histogram.edges[0], histogram.edges[-1]
    low, high = histogram.edges[taken[0]], histogram.edges[taken[-1] + 1]
    return low - 0.04 * (high - low), high + 0.04 * (high - low)
