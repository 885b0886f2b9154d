"""Charts as data: drawn on pages and as figures, and kept as JSON.

A chart has numbers and labels. Scales, colors and sizes are chosen by those who draw it.
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
    """An axis of numbers.

    Attributes:
        label: name and unit.
        percent: the numbers are shares of 1 and drawn as percentages.
        whole: only whole numbers are marked.
        log: logarithms may be taken where the numbers span more than a decade.
        ticks: numbers that a figure marks. () leaves the choice to it.
    """

    label: str
    percent: bool = False
    whole: bool = False
    log: bool = True
    ticks: tuple[float, ...] = ()

    @property
    def factor(self) -> int:
        """Factor from numbers to what the axis has: 100 for percentages."""
        return 100 if self.percent else 1


@dataclass(frozen=True)
class Mark:
    """A point of a series.

    Attributes:
        x: to the right.
        y: up.
        low: end of its interval or range; None without one.
        high: the other end.
        text: shown with the numbers when it is pointed at.
        optional: it may lie off the axis, where an arrow stands for it.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    text: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Series:
    """Points of one kind.

    Attributes:
        label: in the legend.
        marks: the points.
        line: how they are joined: not at all, straight, or level until the next one.
        family: series of one family share a color; "" takes the label.
        dashed: the weaker member of a family.
        faint: what stands behind the others, such as everything that was measured.
    """

    label: str
    marks: tuple[Mark, ...]
    line: Literal["none", "straight", "steps"] = "straight"
    family: str = ""
    dashed: bool = False
    faint: bool = False


@dataclass(frozen=True)
class LineChart:
    """Series over two axes.

    Attributes:
        title: what is against what, and on which rows.
        x: the axis to the right.
        y: the axis upwards.
        series: the points.
        levels: label -> y of a level line, such as float.
        limits: label -> x of an upright line, such as a budget.
        kind: for JSON.
        spread: meaning of the ends of marks, for the caption.
        kept: y that stay on the axis where others are cut off. () takes those of the series that
            are not faint if another one is, else all.
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
        """True if there are fewer than two points to compare."""
        return sum(len(series.marks) for series in self.series) + len(self.levels) < 2


@dataclass(frozen=True)
class Bar:
    """A bar of one or more parts.

    Attributes:
        label: left of it.
        parts: lengths, one behind the other.
        low: end of the interval of the whole; None without one.
        high: the other end.
        hollow: no difference from the baseline is shown.
    """

    label: str
    parts: tuple[float, ...]
    low: float | None = None
    high: float | None = None
    hollow: bool = False


@dataclass(frozen=True)
class BarChart:
    """Bars from 0, one below the other.

    Attributes:
        title: what they compare.
        x: the axis.
        bars: in order from the top.
        parts: names of the parts, where there are several.
        limits: label -> x of an upright line, such as the baseline at 1.
        kind: for JSON.
        spread: meaning of the ends of bars, for the caption.
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
        """True if there is nothing to compare."""
        return len(self.bars) + len(self.limits) < 2


@dataclass(frozen=True)
class HeatMap:
    """Numbers by row and column, as colors.

    Attributes:
        title: what the numbers are.
        rows: names from the top.
        columns: names from the left.
        values: by row, then column; None stays blank.
        xlabel: what the columns are.
        ylabel: what the rows are.
        percent: the numbers are shares of 1.
        log: colors follow the logarithm.
        texts: written into the cells, by row, then column; () takes the numbers.
        kind: for JSON.
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
    kind: Literal["heat"] = "heat"

    @property
    def is_empty(self) -> bool:
        """True if fewer than two cells have a number."""
        return sum(value is not None for row in self.values for value in row) < 2


@dataclass(frozen=True)
class Histogram:
    """Counts of a tensor's numbers, above the values that formats have.

    Attributes:
        title: the tensor.
        counts: by bin.
        low: where the first bin begins.
        high: where the last one ends.
        grids: format -> its values between the ends, or the ends of what it covers evenly.
        covered: formats whose values are too many to be listed. None: those of two values.
    """

    title: str
    counts: tuple[float, ...]
    low: float
    high: float
    grids: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    covered: tuple[str, ...] | None = None

    def is_covered(self, label: str) -> bool:
        """Returns true if only the ends of a format's values are listed."""
        return len(self.grids[label]) == 2 if self.covered is None else label in self.covered

    @property
    def shown(self) -> tuple[float, float]:
        """Ends of the bins that have a number, with a margin. Those of all bins if none has."""
        found = [i for i, count in enumerate(self.counts) if count]
        if not found:
            return self.low, self.high
        step = (self.high - self.low) / len(self.counts)
        margin = MARGIN * step * (found[-1] + 1 - found[0])
        first, last = self.low + step * found[0], self.low + step * (found[-1] + 1)
        return first - margin, last + margin


@dataclass(frozen=True)
class Histograms:
    """Histograms side by side.

    Attributes:
        title: what they show.
        panels: the histograms.
        kind: for JSON.
        abreast: panels of a row of a figure, such as those of one layer.
    """

    title: str
    panels: tuple[Histogram, ...]
    kind: Literal["histograms"] = "histograms"
    abreast: int = 1

    @property
    def is_empty(self) -> bool:
        """True if there is none."""
        return not self.panels


@dataclass(frozen=True)
class GraphNode:
    """A node of a model's graph.

    Attributes:
        path: the modules that it is in, outermost first, and its name.
        kind: of operator.
        lines: class, shape, formats, share pruned.
        reads: positions of the nodes whose results it reads.
        quantized: it computes in a number format.
        stays_float: it could be quantized and is not, while others are.
        numbers: name -> number to color it by, such as the share of its weights that are zero.
        brief: second line of its box; "" takes kind and shape.
        marks: of the chart's `marks`.
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
    """A model's graph, folded by module.

    Attributes:
        title: the model's class.
        nodes: in the order in which they run.
        letters: letter in shapes -> what it stands for.
        marks: word on a box -> what it says; each has a color.
        kind: for JSON.
    """

    title: str
    nodes: tuple[GraphNode, ...]
    letters: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["graph"] = "graph"

    @property
    def is_empty(self) -> bool:
        """True if it has no node."""
        return not self.nodes


Chart = LineChart | BarChart | HeatMap | Histograms | GraphChart


def finite(chart: Chart) -> Chart:
    """A chart without what has no place on it: numbers that are not finite, which JSON lacks too.

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
    """Replaces program names in the title, axes and legend of a chart with readable labels.

    Args:
        chart: chart of a figure. Names of layers in it stay.
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
    """Returns the place of each series' family among all. -1 if it is faint.

    >>> family_places([Series("a", ()), Series("b", ()), Series("c", (), family="a")])
    [0, 1, 0]
    """
    families = list(dict.fromkeys(each.family or each.label for each in series if not each.faint))
    return [-1 if each.faint else families.index(each.family or each.label) for each in series]
