"""Maps of a model's layers, each one call and one file: one row per layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chop.errors import ConfigError
from chop.report.charts import HeatMap, charted_as, heat_map
from chop.report.figures import new_figure, on_cell, plain, save_figure, text_inches

MOST_LISTED = 12
"""Columns up to which cells have their numbers written in."""
LOG_FLOOR = 1e-12
CELL_POINTS = 7


def layer_map_charts(
    cells: Mapping[tuple[str, str], float],
    *,
    xlabel: str,
    measure: str,
    title: str,
    log: bool = False,
    texts: Mapping[tuple[str, str], str] | None = None,
) -> list[HeatMap]:
    """The chart of `plot_layer_map`, which takes the same arguments."""
    name = title if texts or measure in title else f"{title}: {measure}"
    return [heat_map(cells, title=name, xlabel=xlabel, log=log, texts=texts)]


@charted_as(layer_map_charts)
def plot_layer_map(
    path: str | Path,
    cells: Mapping[tuple[str, str], float],
    *,
    xlabel: str,
    measure: str,
    title: str,
    log: bool = False,
    texts: Mapping[tuple[str, str], str] | None = None,
) -> Path:
    """Draws a number for each layer and each of some options.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        cells: (layer, option) -> number, in the order in which layers and options are drawn.
            NaN, and pairs that are missing, stay blank.
        xlabel: what the options are.
        measure: what the numbers are.
        title: above the map.
        log: colors follow the logarithm; what is not positive has the darkest.
        texts: (layer, option) -> what is written into the cell. Default: its number.
    Returns: `path`.
    Raises:
        ConfigError: there is no number.
    """
    layers = list(dict.fromkeys(layer for layer, _ in cells))
    options = list(dict.fromkeys(option for _, option in cells))
    if not any(math.isfinite(value) for value in cells.values()):
        raise ConfigError("plot_layer_map: expected at least one number.")
    values = [[cells.get((layer, option), math.nan) for option in options] for layer in layers]
    shades = [[_shade(value, log) for value in row] for row in values]
    written = texts or {pair: f"{value:.2g}" for pair, value in cells.items()}
    widest = max(text_inches(text, CELL_POINTS) for text in written.values())
    width = 2.2 + 0.085 * max(map(len, layers)) + max(0.75, widest + 0.2) * len(options)
    figure = new_figure(title, max(width, 4.5), 1.8 + 0.28 * len(layers))
    axes = figure.subplots()
    image = axes.imshow(shades, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(options)), options, rotation=45, ha="right", fontsize="small")
    axes.set_yticks(range(len(layers)), layers, fontsize="small")
    if len(options) <= MOST_LISTED:
        finite = [shade for row in shades for shade in row if math.isfinite(shade)]
        middle = (min(finite) + max(finite)) / 2
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                if not math.isnan(value):
                    ink = "white" if shades[i][j] < middle else "black"
                    text = plain(written.get((layers[i], options[j]), ""))
                    placed: dict[str, Any] = {"ha": "center", "va": "center", "gid": on_cell(i, j)}
                    axes.text(j, i, text, color=ink, fontsize=CELL_POINTS, **placed)
    axes.set(xlabel=plain(xlabel))
    figure.colorbar(image, label=f"log10 of {measure}" if log else measure)
    return save_figure(figure, Path(path))


def _shade(value: float, log: bool) -> float:
    if not log or math.isnan(value):
        return value
    return math.log10(min(max(value, LOG_FLOOR), 1 / LOG_FLOOR))
