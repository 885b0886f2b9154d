"""Heat map of a model's layers: one row for each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping

from chop.errors import ConfigError
from chop.report.charts.chart import HeatMap, heat_map


def layer_map_charts(
    cells: Mapping[tuple[str, str], float],
    *,
    xlabel: str,
    measure: str,
    title: str,
    log: bool = False,
    texts: Mapping[tuple[str, str], str] | None = None,
) -> list[HeatMap]:
    """Returns a heat map of a number for each layer and each of some options.

    Args:
        cells: (layer, option) -> number, in the order in which layers and options are drawn.
            NaN, and pairs that are missing, stay blank.
        xlabel: what the options are.
        measure: what the numbers are.
        title: title of the map.
        log: colors follow the logarithm; what is not positive has the darkest.
        texts: (layer, option) -> what is written into the cell. Default: its number.
    Raises:
        ConfigError: there is no number.
    """
    if not any(math.isfinite(value) for value in cells.values()):
        raise ConfigError("layer map: expected at least one number.")
    name = title if texts or measure in title else f"{title}: {measure}"
    return [heat_map(cells, title=name, xlabel=xlabel, log=log, texts=texts)]
