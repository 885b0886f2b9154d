"""Chart of speed relative to a baseline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from chop.errors import ConfigError
from chop.report.charts.chart import Axis, Bar, BarChart
from chop.statistics.intervals import LEVEL_TEXT

if TYPE_CHECKING:
    from chop.bench.record import Measured


def ratio_charts(
    variants: Iterable[Measured], title: str, baseline: str = "the baseline"
) -> list[BarChart]:
    """Returns a bar chart of the speed-up of each variant, with confidence intervals.

    Bars of variants without a significant difference are hollow.

    Args:
        variants: a `chop.bench.Comparison` or some of its variants.
        title: title of the chart.
        baseline: name of the variant that the others are compared with.
    Raises:
        ConfigError: if there are no variants.
    """
    bars = []
    for variant in variants:
        ratio = variant.ratio
        low, high = (ratio.low, ratio.high) if ratio.is_known else (None, None)
        bars.append(Bar(variant.name, (ratio.median,), low, high, ratio.spans_one))
    if not bars:
        raise ConfigError("ratios: expected at least one variant.")
    axis, limits = Axis(f"times as fast as {baseline}", log=False), {baseline: 1.0}
    return [BarChart(title, axis, tuple(bars), limits=limits, spread=f"{LEVEL_TEXT} interval")]
