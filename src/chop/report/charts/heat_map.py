"""Heat maps of a metric over two settings, and of numbers by layer."""

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
    measure: str = "",
) -> HeatMap:
    """Returns a heat map of cells by (row, column) in their order; missing and NaN cells are blank.

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
    return HeatMap(title, rows, columns, values, xlabel, ylabel, percent, log, written, measure)


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
    """Returns a heat map of accuracies or another metric over two settings.

    Args:
        cells: (x, y) -> accuracy from 0 to 1. Missing pairs stay blank.
        xlabel: name of the x setting.
        ylabel: name of the y setting.
        title: title of the chart.
        metric: metric of the cells. Shares are drawn in percent.
    """
    values = {
        (f"{y:g}", f"{x:g}"): cells.get((x, y))
        for y in sorted({y for _, y in cells}, reverse=True)
        for x in sorted({x for x, _ in cells})
    }
    name = f"{title}: {metric.name}"
    return [heat_map(values, title=name, xlabel=xlabel, ylabel=ylabel, percent=metric.is_share)]


def layer_map_charts(
    cells: Mapping[tuple[str, str], float],
    *,
    xlabel: str,
    measure: str,
    title: str,
    log: bool = False,
    texts: Mapping[tuple[str, str], str] | None = None,
) -> list[HeatMap]:
    """Returns a heat map of a number by layer and option.

    Args:
        cells: (layer, option) -> number, in drawing order. NaN and missing pairs stay blank.
        xlabel: label of the options.
        measure: name of the number.
        title: title of the map.
        log: maps colors to logarithms. Numbers of 0 or less get the darkest color.
        texts: (layer, option) -> text of the cell. Default: its number.
    Raises:
        ConfigError: if all cells are blank.
    """
    if not any(math.isfinite(value) for value in cells.values()):
        raise ConfigError("layer map: expected at least one number.")
    name = title if texts or measure in title else f"{title}: {measure}"
    return [heat_map(cells, title=name, xlabel=xlabel, log=log, texts=texts, measure=measure)]
