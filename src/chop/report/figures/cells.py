"""Heat maps as figures, with a color and a number or text in each cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chop.report.charts.chart import HeatMap
from chop.report.figures.style import new_figure, on_cell, plain, text_inches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_TEXT_COLUMNS = 20
"""Maximum number of columns with cell texts."""
LOG_FLOOR = 1e-12
CELL_POINTS, NAME_POINTS = 7, 8.3
MIN_CELL = 0.75
"""Minimum column width in inches."""
DARK_SHARE = 0.6
"""Share of the color scale from which texts are white."""


def cell_figure(chart: HeatMap) -> Figure:
    """Returns a heat map as a figure, with the first row on top."""
    texts = [[_text(chart, i, j) for j, _ in enumerate(row)] for i, row in enumerate(chart.values)]
    widest = max(text_inches(text, CELL_POINTS) for row in texts for text in row)
    cell, names = max(MIN_CELL, widest + 0.2), list(map(plain, chart.columns))
    width = 2.2 + 0.085 * max(map(len, chart.rows)) + cell * len(names)
    figure = new_figure(chart.title, max(width, 4.5), 1.8 + 0.28 * len(chart.rows))
    axes = figure.subplots()
    shades = [[_shade(value, chart) for value in row] for row in chart.values]
    finite = [shade for row in shades for shade in row if math.isfinite(shade)]
    ends = min(finite, default=0.0), max(finite, default=1.0)
    least, most = (0.0, 100.0) if chart.percent else ends
    image = axes.imshow(shades, cmap="viridis", vmin=least, vmax=most, aspect="auto")
    is_slanted = max(text_inches(name, NAME_POINTS) for name in names) > cell - 0.1
    slant: dict[str, Any] = {"rotation": 45, "ha": "right"} if is_slanted else {}
    axes.set_xticks(range(len(names)), names, fontsize="small", **slant)
    axes.set_yticks(range(len(chart.rows)), list(map(plain, chart.rows)), fontsize="small")
    if len(names) <= MAX_TEXT_COLUMNS:
        _write(axes, texts, shades, least + DARK_SHARE * (most - least))
    axes.set(xlabel=plain(chart.xlabel), ylabel=plain(chart.ylabel))
    unit = "log10" if chart.log else "%" * chart.percent
    figure.colorbar(image, label=" ".join(filter(None, (unit, plain(chart.measure)))))
    return figure


def _text(chart: HeatMap, row: int, column: int) -> str:
    value = chart.values[row][column]
    if value is None:
        return ""
    if chart.texts:
        return chart.texts[row][column]
    return f"{100 * value:.1f}" if chart.percent else f"{value:.3g}"


def _shade(value: float | None, chart: HeatMap) -> float:
    if value is None:
        return math.nan
    if chart.log:
        return math.log10(min(max(value, LOG_FLOOR), 1 / LOG_FLOOR))
    return 100 * value if chart.percent else value


def _write(
    axes: Axes, texts: Sequence[Sequence[str]], shades: Sequence[Sequence[float]], dark: float
) -> None:
    """Writes cell texts, in white on dark cells."""
    placed: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": CELL_POINTS}
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            if text:
                ink = "white" if shades[i][j] < dark else "black"
                axes.text(j, i, plain(text), color=ink, gid=on_cell(i, j), **placed)
