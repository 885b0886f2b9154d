"""Plots of measured times, each one call and one file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from chop.errors import ConfigError
from chop.report.charts import Axis, Bar, BarChart, charted_as
from chop.report.figures import PALETTE, WIDTH, new_figure, plain, save_figure
from chop.statistics.intervals import LEVEL_TEXT

if TYPE_CHECKING:
    from chop.bench.record import Measured


def ratio_charts(variants: Iterable[Measured], title: str) -> list[BarChart]:
    """The chart of `plot_ratios`, which takes the same arguments."""
    bars = []
    for variant in variants:
        ratio = variant.ratio
        low, high = (ratio.low, ratio.high) if ratio.is_known else (None, None)
        bars.append(Bar(variant.name, (ratio.median,), low, high, ratio.spans_one))
    axis = Axis("times as fast as the baseline", log=False)
    return [
        BarChart(
            title,
            axis,
            tuple(bars),
            limits={"baseline": 1.0},
            spread=f"{LEVEL_TEXT} interval",
        )
    ]


@charted_as(ratio_charts)
def plot_ratios(path: str | Path, variants: Iterable[Measured], title: str) -> Path:
    """Draws how many times as fast as the baseline each variant is, with its bounds.

    Bars of variants for which no difference is shown are hollow.

    Args:
        path: the file; its suffix (.svg, .png, .pdf) picks the kind.
        variants: a `chop.bench.Comparison`, or some variants of one.
        title: above the plot.
    Returns: `path`.
    Raises:
        ConfigError: there is none.
    """
    drawn = list(variants)
    if not drawn:
        raise ConfigError("plot_ratios: expected at least one variant.")
    figure = new_figure(title, WIDTH, 1.4 + 0.4 * len(drawn))
    axes = figure.subplots()
    for place, variant in enumerate(drawn):
        ratio = variant.ratio
        filled = "none" if ratio.spans_one else PALETTE[0]
        axes.barh(place, ratio.median, color=filled, edgecolor=PALETTE[0], height=0.6)
        if ratio.is_known:
            ends = [[ratio.median - ratio.low], [ratio.high - ratio.median]]
            axes.errorbar(ratio.median, place, xerr=ends, color="black", capsize=4)
    axes.axvline(1, color="black", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(drawn)), [plain(variant.name) for variant in drawn])
    axes.invert_yaxis()
    axes.set(xlabel="times as fast as the baseline")
    axes.grid(alpha=0.3, axis="x")
    return save_figure(figure, Path(path))
