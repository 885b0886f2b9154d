"""Histograms as SVG, with the representable values of formats below them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape

from chop.report.charts.chart import Histogram
from chop.report.charts.scale import AxisScale
from chop.report.page.svg import number, svg_element, svg_text
from chop.report.page.ticks import Place

PANEL_WIDTH, PANEL_HEIGHT, STRIP = 300.0, 90.0, 12.0


def histogram(panel: Histogram, kinds: Mapping[str, str]) -> str:
    """Draws a histogram with logarithmic counts, and a strip of values for each format.

    Args:
        panel: the histogram.
        kinds: format -> CSS class of its color, as in the legend.
    """
    height = PANEL_HEIGHT + STRIP * len(panel.grids) + 20
    return svg_element(PANEL_WIDTH, height, panel.title, _panel_parts(panel, kinds))


def _panel_parts(panel: Histogram, kinds: Mapping[str, str]) -> Iterator[str]:
    taken = [i for i, count in enumerate(panel.counts) if count]
    step = (panel.high - panel.low) / max(len(panel.counts), 1)
    x = Place(AxisScale(*panel.visible_range), 8.0, PANEL_WIDTH - 8)
    most = math.log10(2 * max([*panel.counts, 1]))
    for i in taken:
        count = panel.counts[i]
        size = (math.log10(max(count, 0.5)) - math.log10(0.5)) / (most - math.log10(0.5))
        ends = x.of(panel.low + step * i), x.of(panel.low + step * (i + 1))
        tall = size * (PANEL_HEIGHT - 6)
        tip = f"{panel.title}\n{number(panel.low + step * i)} to "
        tip += f"{number(panel.low + step * (i + 1))}: {count:,.0f}"
        yield (
            f'<rect class="count" x="{ends[0]:.1f}" y="{PANEL_HEIGHT - tall:.1f}" '
            f'width="{max(ends[1] - ends[0], 0.5):.1f}" height="{tall:.1f}" '
            f'data-tip="{escape(tip)}"/>'
        )
    for place, label in enumerate(panel.grids):
        yield _strip(panel, label, PANEL_HEIGHT + STRIP * place, kinds[label], x)
    bottom = PANEL_HEIGHT + STRIP * len(panel.grids) + 14
    for tick in x.ticks:
        yield svg_text(x.of(tick), bottom, number(tick))


def _strip(panel: Histogram, label: str, top: float, kind: str, x: Place) -> str:
    """Draws the values of a format, or a bar if there are too many."""
    values = panel.grids[label]
    if panel.is_covered(label):
        return (
            f'<rect class="bar {kind}" x="{x.of(values[0]):.1f}" y="{top + 2:.1f}" '
            f'width="{x.of(values[1]) - x.of(values[0]):.1f}" height="{STRIP - 4}" '
            f'data-tip="{escape(label)}"/>'
        )
    strokes = "".join(f"M{x.of(value):.1f},{top + 2:.1f}v{STRIP - 4:.0f}" for value in values)
    return f'<path class="line thin {kind}" d="{strokes}" data-tip="{escape(label)}"/>'
