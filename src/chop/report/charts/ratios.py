"""Chart of measured times beside those of a baseline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from chop.errors import ConfigError
from chop.report.charts.chart import Axis, Bar, BarChart
from chop.statistics.intervals import LEVEL_TEXT

if TYPE_CHECKING:
    from chop.bench.record import Measured


def ratio_charts(variants: Iterable[Measured], title: str) -> list[BarChart]:
    """Returns a chart of how many times as fast as the baseline each variant is, with bounds.

    Bars of variants for which no difference is shown are hollow.

    Args:
        variants: a `chop.bench.Comparison`, or some variants of one.
        title: title of the chart.
    Raises:
        ConfigError: there is none.
    """
    bars = []
    for variant in variants:
        ratio = variant.ratio
        low, high = (ratio.low, ratio.high) if ratio.is_known else (None, None)
        bars.append(Bar(variant.name, (ratio.median,), low, high, ratio.spans_one))
    if not bars:
        raise ConfigError("ratios: expected at least one variant.")
    axis, limits = Axis("times as fast as the baseline", log=False), {"baseline": 1.0}
    return [BarChart(title, axis, tuple(bars), limits=limits, spread=f"{LEVEL_TEXT} interval")]
