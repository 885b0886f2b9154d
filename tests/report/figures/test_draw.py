"""One renderer: figures show what pages show of the same charts."""

import math
from dataclasses import replace
from inspect import signature
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chop.report.charts.accuracy import Curve
from chop.report.charts.best_so_far import best_so_far_charts
from chop.report.charts.chart import GraphChart, Histogram
from chop.report.charts.merge import merged
from chop.report.charts.scale import scale_upwards
from chop.report.charts.search import Cloud, front_charts
from chop.report.charts.value_grids import EvenGrid, value_grid_charts
from chop.report.figures.draw import draw_charts
from chop.report.page.histogram import histogram
from chop.report.page.svg import places, svg
from chop.report.plots import plot_accuracy, plot_front, plot_heat_map, plot_plans, plot_value_grids
from chop.train import Metric


def test_a_figure_and_a_page_have_the_same_axes(seen):
    points = [(2.0, 0.1), *((x / 4, 0.9 + x / 400) for x in range(8, 33))]
    told = {"ylabel": "accuracy", "title": "T"}
    clouds = [Cloud("lut", [(10**x, y) for x, y in points], [(1e4, 0.91), (1e6, 0.96)])]
    plot_front("x.svg", clouds, **told)
    axes, (chart,) = seen[0].axes[0], front_charts(clouds, **told)
    across, up = places(chart)
    assert axes.get_xlim() == (across.scale.low, across.scale.high)
    assert axes.get_ylim() == (up.scale.low, up.scale.high)
    assert (axes.get_xscale(), up.scale.below) == ("log", (10.0,))
    assert svg(chart).count('class="mark faint" d=') == 1  # an arrow for what is cut off


def test_short_logarithmic_axes_have_their_numbers_written_out(seen):
    curves = [Curve("PTQ", [(2, 4.0), (4, 0.5), (8, 0.11)])]
    loss = Metric("loss", score=None)
    plot_accuracy("x.svg", curves, xlabel="bits", title="T", metric=loss, ticks=[2, 4, 8])
    axes = seen[0].axes[0]
    named = [text.get_text() for text in axes.get_yticklabels()]
    assert named == ["0.1", "0.2", "0.5", "1", "2"] and axes.get_xticks().tolist() == [2, 4, 8]


def test_two_values_of_a_format_are_two_marks(seen):
    grids = [EvenGrid("2", -2, 0, 2), EvenGrid("12.10", -2, 1.999, 2**-10)]
    layers = [[Histogram("fc weight", (1, 5, 9, 5), -2, 2)]]
    plot_value_grids("x.svg", layers, grids, title="T")
    _, marks, _, bar = seen[0].axes[0].collections
    assert [segment[0][0] for segment in marks.get_segments()] == [-2, 0]
    assert type(bar) is not type(marks)
    (panel,) = value_grid_charts(layers, grids, title="T")[0].panels
    assert panel.grids["2"] == (-2, 0) and panel.covered == ("12.10",)
    drawn = histogram(panel, {"2": "c0", "12.10": "c1"})
    assert 'class="bar c1"' in drawn and 'class="bar c0"' not in drawn
    earlier = replace(panel, covered=None)
    assert earlier.is_covered("2") and earlier.is_covered("12.10")


def test_baselines_alone_and_cells_without_numbers_are_drawn(seen):
    plot_accuracy("x.svg", [], {"float": 0.01}, xlabel="bits", title="T")
    assert [text.get_text() for text in seen[0].legends[0].get_texts()] == ["float (1.00 %)"]
    cells, loss = {(4, 2): math.nan, (8, 2): math.inf}, Metric("loss", score=None)
    plot_heat_map("x.svg", cells, xlabel="w", ylabel="f", title="T", metric=loss)
    assert [text.get_text() for text in seen[1].axes[0].texts] == ["inf"]


def test_runs_that_are_compared_keep_what_each_of_them_keeps():
    def chart(values):
        curves = {"tpe": [list(enumerate(values))]}
        return best_so_far_charts(curves, ylabel="accuracy", title="T")[0]

    far, near = chart([0.5, 0.51, 0.52]), chart([0.94, 0.95, 0.96, 0.97])
    both = merged({"a": far, "b": near})
    assert both.kept == (*far.kept, *near.kept)
    assert not scale_upwards([both]).below and scale_upwards([replace(both, kept=near.kept)]).below
    assert merged({"a": far, "b": replace(near, kept=())}).kept == ()


def test_plans_are_panels_of_one_figure_with_a_common_legend(seen):
    rows = [
        {"plan": f"plan {i}", "seconds": 0.01, "kept_bytes": 5e6, "peak_bytes": 7e6}
        for i in range(2)
    ]
    plot_plans("x.svg", rows, "T", 6_000_000)
    times, sizes = seen[0].axes
    assert [patch.get_width() for patch in times.patches] == pytest.approx([10, 10])
    assert [patch.get_width() for patch in sizes.patches] == pytest.approx([5, 2, 5, 2])
    named = [text.get_text() for text in seen[0].legends[0].get_texts()]
    assert named == ["parameters", "activations", "budget (6)"]


def test_a_graph_has_no_figure(tmp_path):
    with pytest.raises(TypeError, match="got 'graph'"):
        draw_charts(tmp_path / "x.svg", [GraphChart("net", ())])
    assert list(tmp_path.iterdir()) == []


def test_plotting_functions_have_the_path_first_and_take_it_by_name(tmp_path):
    assert next(iter(signature(plot_accuracy).parameters)) == "path"
    assert "curves: the lines" in plot_accuracy.__doc__
    curves = [Curve("PTQ", [(4, 0.8), (8, 0.9)])]
    written = plot_accuracy(curves=curves, path=str(tmp_path / "a.svg"), xlabel="bits", title="T")
    assert isinstance(written, Path) and ElementTree.parse(written).getroot() is not None
