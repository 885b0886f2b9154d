"""Charts as data, drawn on pages and in figures and stored as JSON.

A chart holds numbers and labels. The renderers choose scales, colors and sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from chop.report.words import in_words

MARGIN = 0.04
"""Margin of a histogram, as a share of its width."""


@dataclass(frozen=True)
class Axis:
    """Numeric axis of a chart.

    Attributes:
        label: name and unit.
        percent: draws the numbers, shares of 1, as percentages.
        whole: places ticks at whole numbers only.
        log: allows a logarithmic scale if the numbers span more than a decade.
        ticks: ticks of a figure. Empty for automatic ticks.
    """

    label: str
    percent: bool = False
    whole: bool = False
    log: bool = True
    ticks: tuple[float, ...] = ()

    @property
    def factor(self) -> int:
        """Factor from stored numbers to axis numbers: 100 for percentages."""
        return 100 if self.percent else 1


@dataclass(frozen=True)
class Mark:
    """Data point of a series.

    Attributes:
        x: horizontal coordinate.
        y: vertical coordinate.
        low: lower end of its interval or range. None if it has none.
        high: upper end of its interval or range.
        text: text shown on hover, in addition to the numbers.
        optional: lets the point lie off the axis, where an arrow represents it.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    text: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Series:
    """Data series of a line chart.

    Attributes:
        label: text of its legend entry.
        marks: its points.
        line: connection of the points: none, straight lines, or steps.
        family: series of one family share a color. "" uses the label.
        dashed: draws the series dashed, as the weaker member of its family.
        faint: draws the series in the background, such as all trials behind a front.
    """

    label: str
    marks: tuple[Mark, ...]
    line: Literal["none", "straight", "steps"] = "straight"
    family: str = ""
    dashed: bool = False
    faint: bool = False


@dataclass(frozen=True)
class LineChart:
    """Line chart: series over two numeric axes.

    Attributes:
        title: title with both quantities and the rows they were measured on.
        x: horizontal axis.
        y: vertical axis.
        series: data series.
        levels: label -> y of a horizontal line, such as the float model.
        limits: label -> x of a vertical line, such as a budget.
        kind: type tag in JSON.
        spread: meaning of error bars and bands, for the caption.
        kept: y values that must stay on the axis when others are cut off. Empty uses the series in
            the foreground, or all series if none is faint.
    """

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    levels: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    kind: Literal["lines"] = "lines"
    spread: str = ""
    kept: tuple[float, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if the chart has fewer than two points to compare."""
        return sum(len(series.marks) for series in self.series) + len(self.levels) < 2


@dataclass(frozen=True)
class Bar:
    """Bar of one or more stacked parts.

    Attributes:
        label: label to the left of the bar.
        parts: lengths of the parts, in drawing order.
        low: lower end of the interval of the total. None if it has none.
        high: upper end of the interval.
        hollow: marks a bar without a significant difference from the baseline.
    """

    label: str
    parts: tuple[float, ...]
    low: float | None = None
    high: float | None = None
    hollow: bool = False


@dataclass(frozen=True)
class BarChart:
    """Horizontal bar chart whose bars start at 0.

    Attributes:
        title: title of the chart.
        x: value axis.
        bars: bars from top to bottom.
        parts: names of the stacked parts, if there are several.
        limits: label -> x of a vertical line, such as the baseline at 1.
        kind: type tag in JSON.
        spread: meaning of the error bars, for the caption.
    """

    title: str
    x: Axis
    bars: tuple[Bar, ...]
    parts: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    kind: Literal["bars"] = "bars"
    spread: str = ""

    @property
    def is_empty(self) -> bool:
        """True if the chart has no bars to compare."""
        return len(self.bars) + len(self.limits) < 2


@dataclass(frozen=True)
class HeatMap:
    """Heat map: numbers by row and column, drawn as colors.

    Attributes:
        title: quantity of the cells.
        rows: row names from the top.
        columns: column names from the left.
        values: numbers by row, then column. None leaves a cell blank.
        xlabel: label of the columns.
        ylabel: label of the rows.
        percent: draws the numbers, shares of 1, as percentages.
        log: maps colors to the logarithm of the numbers.
        texts: cell texts by row, then column. Empty shows the numbers.
        measure: name of the numbers, beside the color scale.
        kind: type tag in JSON.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    xlabel: str = ""
    ylabel: str = ""
    percent: bool = False
    log: bool = False
    texts: tuple[tuple[str, ...], ...] = ()
    measure: str = ""
    kind: Literal["heat"] = "heat"

    @property
    def is_empty(self) -> bool:
        """True if fewer than two cells have numbers."""
        return sum(value is not None for row in self.values for value in row) < 2


@dataclass(frozen=True)
class Histogram:
    """Histogram of a tensor with the representable values of number formats.

    Attributes:
        title: name of the tensor.
        counts: count of each bin.
        low: lower edge of the first bin.
        high: upper edge of the last bin.
        grids: format -> its representable values within the histogram, or the two ends of its
            range.
        covered: formats with too many values to list. None derives them: formats with two values.
    """

    title: str
    counts: tuple[float, ...]
    low: float
    high: float
    grids: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    covered: tuple[str, ...] | None = None

    def is_covered(self, label: str) -> bool:
        """Returns whether only the ends of a format's range are stored."""
        return len(self.grids[label]) == 2 if self.covered is None else label in self.covered

    @property
    def visible_range(self) -> tuple[float, float]:
        """Returns the edges of the nonempty bins with a margin; of all bins if all are empty."""
        nonempty = [i for i, count in enumerate(self.counts) if count]
        if not nonempty:
            return self.low, self.high
        step = (self.high - self.low) / len(self.counts)
        margin = MARGIN * step * (nonempty[-1] + 1 - nonempty[0])
        first, last = self.low + step * nonempty[0], self.low + step * (nonempty[-1] + 1)
        return first - margin, last + margin


@dataclass(frozen=True)
class Histograms:
    """Histograms side by side.

    Attributes:
        title: title of the chart.
        panels: the histograms.
        kind: type tag in JSON.
        abreast: panels in a row of a figure, such as those of one layer.
    """

    title: str
    panels: tuple[Histogram, ...]
    kind: Literal["histograms"] = "histograms"
    abreast: int = 1

    @property
    def is_empty(self) -> bool:
        """True if there are no histograms."""
        return not self.panels


@dataclass(frozen=True)
class GraphNode:
    """Node of a model's graph.

    Attributes:
        path: names of the enclosing modules, outermost first, then its own name.
        kind: kind of operator.
        lines: text lines: class, shape, formats, share of pruned weights.
        reads: indices of the nodes it takes inputs from.
        quantized: computes in a number format.
        stays_float: stays in float although it could be quantized and other layers are.
        numbers: name -> number for coloring, such as the share of zero weights.
        brief: second line of its box. "" uses kind and shape.
        marks: keys of the chart's `marks`.
    """

    path: tuple[str, ...]
    kind: str
    lines: tuple[str, ...] = ()
    reads: tuple[int, ...] = ()
    quantized: bool = False
    stays_float: bool = False
    numbers: Mapping[str, float] = field(default_factory=dict)
    brief: str = ""
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class GraphChart:
    """Graph of a model, folded by module.

    Attributes:
        title: class of the model.
        nodes: nodes in execution order.
        letters: letter in shapes -> its meaning.
        marks: word on a box -> its explanation. Each word has a color.
        kind: type tag in JSON.
    """

    title: str
    nodes: tuple[GraphNode, ...]
    letters: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["graph"] = "graph"

    @property
    def is_empty(self) -> bool:
        """True if the graph has no nodes."""
        return not self.nodes


Chart = LineChart | BarChart | HeatMap | Histograms | GraphChart


def finite(chart: Chart) -> Chart:
    """Returns a chart without non-finite numbers, which plots and JSON cannot represent.

    >>> axes = Axis("bits"), Axis("loss")
    >>> series = Series("PTQ", (Mark(4, math.inf), Mark(8, 1)))
    >>> chart = LineChart("", *axes, (series,), {"a": math.nan})
    >>> [mark.x for mark in finite(chart).series[0].marks], finite(chart).levels
    ([8], {})
    """
    if isinstance(chart, LineChart):
        series = tuple(
            replace(
                each,
                marks=tuple(
                    mark for mark in each.marks if math.isfinite(mark.x) and math.isfinite(mark.y)
                ),
            )
            for each in chart.series
        )
        levels, limits = _finite_numbers(chart.levels), _finite_numbers(chart.limits)
        return replace(chart, series=series, levels=levels, limits=limits)
    if isinstance(chart, BarChart):
        bars = tuple(bar for bar in chart.bars if all(map(math.isfinite, bar.parts)))
        return replace(chart, bars=bars, limits=_finite_numbers(chart.limits))
    if isinstance(chart, GraphChart):
        nodes = tuple(replace(node, numbers=_finite_numbers(node.numbers)) for node in chart.nodes)
        return replace(chart, nodes=nodes)
    return chart


def chart_in_words(chart: Chart) -> Chart:
    """Replaces identifiers in the title, axes and legend of a chart with readable labels.

    Args:
        chart: chart of a figure. Names of layers stay.
    """
    if isinstance(chart, LineChart):
        series = tuple(replace(each, label=in_words(each.label)) for each in chart.series)
        x, y = (replace(axis, label=in_words(axis.label)) for axis in (chart.x, chart.y))
        return replace(chart, title=in_words(chart.title), x=x, y=y, series=series)
    if isinstance(chart, BarChart):
        x = replace(chart.x, label=in_words(chart.x.label))
        return replace(chart, title=in_words(chart.title), x=x)
    if isinstance(chart, HeatMap):
        title, across, up = map(in_words, (chart.title, chart.xlabel, chart.ylabel))
        return replace(chart, title=title, xlabel=across, ylabel=up)
    return chart


def _finite_numbers(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def family_places(series: Sequence[Series]) -> list[int]:
    """Returns the index of each series' family, or -1 for faint series.

    >>> family_places([Series("a", ()), Series("b", ()), Series("c", (), family="a")])
    [0, 1, 0]
    """
    families = list(dict.fromkeys(each.family or each.label for each in series if not each.faint))
    return [-1 if each.faint else families.index(each.family or each.label) for each in series]
