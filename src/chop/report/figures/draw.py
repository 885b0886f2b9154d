"""Drawing of charts of any kind into figure files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, Protocol

from chop.report.charts.chart import BarChart, Chart, HeatMap, Histograms, LineChart
from chop.report.figures.bars import bar_figure
from chop.report.figures.cells import cell_figure
from chop.report.figures.histograms import histogram_figure
from chop.report.figures.lines import line_figure
from chop.report.figures.style import save_figure

P = ParamSpec("P")


def draw_charts(path: str | Path, charts: Sequence[Chart]) -> Path:
    """Draws charts as one figure and saves it.

    Args:
        path: output file; its suffix (.svg, .png, .pdf) selects the format.
        charts: one chart, or several line or bar charts as panels of one figure.
    Returns: `path`.
    Raises:
        TypeError: if the chart is a graph, which has no figure.
    """
    lines = [chart for chart in charts if isinstance(chart, LineChart)]
    bars = [chart for chart in charts if isinstance(chart, BarChart)]
    first = charts[0]
    if lines:
        figure = line_figure(lines)
    elif bars:
        figure = bar_figure(bars)
    elif isinstance(first, HeatMap):
        figure = cell_figure(first)
    elif isinstance(first, Histograms):
        figure = histogram_figure(first)
    else:
        raise TypeError(f"expected a chart of lines, bars, cells or counts, got {first.kind!r}.")
    return save_figure(figure, Path(path))


class Plot(Protocol[P]):
    """Plotting function with the arguments of a chart maker after the output path."""

    def __call__(self, path: str | Path, *args: P.args, **kwargs: P.kwargs) -> Path:
        """Draws into the file at `path`."""


def plotted(make: Callable[P, Sequence[Chart]]) -> Plot[P]:
    """Returns a plotting function for a chart maker; its first argument is the output path."""

    def plot(path: str | Path, *args: P.args, **kwargs: P.kwargs) -> Path:
        return draw_charts(path, make(*args, **kwargs))

    path = inspect.Parameter("path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [path, *inspect.signature(make).parameters.values()]
    vars(plot)["__signature__"] = inspect.Signature(parameters, return_annotation=Path)
    plot.__doc__ = f"Draws charts into the file `path` (.svg, .png, .pdf): {inspect.getdoc(make)}"
    return plot
