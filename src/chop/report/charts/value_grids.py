"""Histograms of layers with the representable values of candidate formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chop.errors import ConfigError
from chop.report.charts.chart import Histogram, Histograms

MAX_ROWS = 7
"""Maximum number of rows of panels, so that figures are at most 1,500 pixels high."""
MAX_LAYERS = 2 * MAX_ROWS
MAX_MARKS = 100
"""Maximum number of grid values drawn as marks; more are drawn as a bar."""


@dataclass(frozen=True)
class EvenGrid:
    """Evenly spaced values of a fixed-point format: `low`, `low + step` ... `high`."""

    label: str
    low: float
    high: float
    step: float


def value_grid_charts(
    layers: Sequence[Sequence[Histogram]], grids: Sequence[EvenGrid], *, title: str
) -> list[Histograms]:
    """Returns a row of histograms for each layer, with the values of each format below.

    Counts are on a logarithmic scale. A number outside the marks saturates, and a number between
    two marks is rounded to the nearer one.

    Args:
        layers: histograms of each layer, equally many per layer, for at most `MAX_LAYERS` layers.
        grids: grids of the formats, from the top.
        title: title of the histograms.
    Raises:
        ConfigError: if the number of layers is 0 or too large.
    """
    if not 0 < len(layers) <= MAX_LAYERS:
        raise ConfigError(f"value grids: got {len(layers)} layers, expected 1 to {MAX_LAYERS}.")
    panels = [_with_grids(each, grids) for layer in layers for each in layer]
    return [Histograms(title, tuple(panels), abreast=len(layers[0]))]


def _with_grids(panel: Histogram, grids: Sequence[EvenGrid]) -> Histogram:
    """Returns a histogram with the values of each grid, or with only its ends for large grids."""
    low, high = panel.visible_range
    values, covered = {}, []
    for grid in grids:
        first, last = max(grid.low, low) / grid.step, min(grid.high, high) / grid.step
        places: Sequence[int] = range(math.ceil(first), math.floor(last) + 1)
        if len(places) > MAX_MARKS:
            covered.append(grid.label)
            places = places[0], places[-1]
        values[grid.label] = tuple(grid.step * k for k in places)
    return replace(panel, grids=values, covered=tuple(covered))
