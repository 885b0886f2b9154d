"""Heat maps: a metric over two settings, and numbers of a model's layers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from chop.errors import ConfigError
from chop.report.charts.chart import HeatMap
from chop.train.metric import Metric
from chop.train.tasks import CLASSIFICATION


def heat_map(
    cells: Mapping[tuple[str, str], float | None],
    *,
    title: str,
    xlabel: str = "",
    ylabel: str = "",
    percent: bool = False,
    log: bool = False,
    texts: Mapping[tuple[str, str], str] | None = None,
) -> HeatMap:
    """A heat map of cells by (row, column), in their order; NaN and missing ones are blank.

    >>> heat_map({("fc1", "4"): 0.5, ("fc2", "8"): float("nan")}, title="").values
    ((0.5, None), (None, None))
    """
    rows = tuple(dict.fromkeys(row for row, _ in cells))
    columns = tuple(dict.fromkeys(column for _, column in cells))
    values = tuple(tuple(_known(cells.get((row, column))) for column in columns) for row in rows)
    written = (
        tuple(tuple(texts.get((row, column), "") for column in columns) for row in rows if texts)
        if texts
        else ()
    )
    return HeatMap(title, rows, columns, values, xlabel, ylabel, percent, log, written)


def _known(value: float | None) -> float | None:
    return value if value is not None and value == value else None


def heat_map_charts(
    cells: Mapping[tuple[float, float], float],
    *,
    xlabel: str,
    ylabel: str,
    title: str,
    metric: Metric = CLASSIFICATION.metric,
) -> list[HeatMap]:
    """Returns a heat map of accuracies, or another metric, over two settings.

    Args:
        cells: (x, y) -> accuracy from 0 to 1; pairs that are missing stay blank.
        xlabel: the setting that x is.
        ylabel: the setting that y is.
        title: title of the chart.
        metric: what the cells are; shares are drawn in percent.
    """
    found = {
        (f"{y:g}", f"{x:g}"): cells.get((x, y))
        for y in sorted({y for _, y in cells}, reverse=True)
        for x in sorted({x for x, _ in cells})
    }
    name = f"{title}: {metric.name}"
    return [heat_map(found, title=name, xlabel=xlabel, ylabel=ylabel, percent=metric.is_share)]


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
