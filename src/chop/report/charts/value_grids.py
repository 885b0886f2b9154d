"""Histograms of the numbers in a model's layers, above the values of formats that may hold them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chop.errors import ConfigError
from chop.report.charts.chart import Histogram, Histograms

MOST_ROWS = 7
"""Rows of panels, so that a figure is at most 1,500 pixels high."""
MOST_LAYERS = 2 * MOST_ROWS
MOST_MARKS = 100
"""Values of a grid in a panel up to which each has a mark; more are drawn as a bar."""


@dataclass(frozen=True)
class EvenGrid:
    """Values of a fixed-point format: `low`, `low + step` ... `high`."""

    label: str
    low: float
    high: float
    step: float


def value_grid_charts(
    layers: Sequence[Sequence[Histogram]], grids: Sequence[EvenGrid], *, title: str
) -> list[Histograms]:
    """Returns a row of histograms for each layer, and under each the values of each format.

    Counts are on a logarithmic scale. A number outside the marks saturates, one between two marks
    is rounded to the nearer.

    Args:
        layers: histograms of each layer, as many of each; at most `MOST_LAYERS` layers.
        grids: the formats, the first on top.
        title: title of the histograms.
    Raises:
        ConfigError: no layer, or too many.
    """
    if not 0 < len(layers) <= MOST_LAYERS:
        raise ConfigError(f"value grids: got {len(layers)} layers, expected 1 to {MOST_LAYERS}.")
    panels = [_with_grids(each, grids) for layer in layers for each in layer]
    return [Histograms(title, tuple(panels), abreast=len(layers[0]))]


def _with_grids(panel: Histogram, grids: Sequence[EvenGrid]) -> Histogram:
    """Returns a histogram with the values of each grid, or their ends where they are too many."""
    low, high = panel.shown
    values, covered = {}, []
    for grid in grids:
        first, last = max(grid.low, low) / grid.step, min(grid.high, high) / grid.step
        places: Sequence[int] = range(math.ceil(first), math.floor(last) + 1)
        if len(places) > MOST_MARKS:
            covered.append(grid.label)
            places = places[0], places[-1]
        values[grid.label] = tuple(grid.step * k for k in places)
    return replace(panel, grids=values, covered=tuple(covered))
