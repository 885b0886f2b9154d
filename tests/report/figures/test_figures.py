"""What all figures share: the same bytes each time, legends off the curves, nothing cut."""

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from chop.errors import ConfigError
from chop.report.charts.accuracy import Curve, Trials, accuracy_charts
from chop.report.charts.chart import Histogram
from chop.report.charts.heat_map import layer_map_charts
from chop.report.charts.search import Cloud
from chop.report.charts.value_grids import EvenGrid
from chop.report.plots import (
    plot_accuracy,
    plot_best_so_far,
    plot_front,
    plot_layer_map,
    plot_value_grids,
)
from chop.train import Metric
from tests import programs

EVERY_PLOT = Path(__file__).with_name("every_plot.py")


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """The figures of two processes whose strings have other hashes: name -> bytes."""
    first, second = (tmp_path_factory.mktemp("figures") for _ in range(2))
    done = programs.run(EVERY_PLOT, first)
    assert done.returncode == 0, done.stderr
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, EVERY_PLOT, second], env=environment, check=True)
    return [
        {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
        for folder in (first, second)
    ]


@pytest.mark.long
def test_a_figure_that_is_drawn_again_has_the_same_bytes(twice):
    first, second = twice
    assert len(first) == 33
    assert [name for name in first if first[name] != second[name]] == []


@pytest.mark.long
def test_no_figure_says_when_it_was_drawn(twice):
    for name, content in twice[0].items():
        assert b"date>" not in content and b"CreationDate" not in content, name


NAMES = ("sensitivity", "tpe", "random", "grid", "nsga2", "cmaes", "gp", "own")
LONG = "model=./some/where/far/away/model-{}, budgets.bits=4, compression=compress-train"
SHAPES = {
    "one trial": {"tpe": [[(1, 0.95)]]},
    "two trials": {"tpe": [[(1, 0.1), (2, 0.96)]]},
    "200 trials": {"tpe": [[(i, 1 - 0.9 / i) for i in range(1, 201)]]},
    "falling": {"tpe": [[(i, 1 / i) for i in range(1, 41)]]},
    "eight with seeds": {
        name: [[(i, 1 - 0.9 / (i + k + seed)) for i in range(1, 41)] for seed in range(3)]
        for k, name in enumerate(NAMES)
    },
    "long labels": {LONG.format(k) * (k + 1): [[(1, 0.5), (9, 0.6 + k / 10)]] for k in range(4)},
    "all equal": {name: [[(i, 0.95) for i in range(1, 9)]] for name in NAMES[:2]},
    "not finite": {
        "tpe": [[(1, math.inf), (2, math.nan), (3, 0.4), (4, 0.5)]],
        "gp": [[(1, -math.inf)]],
    },
    "collapse": {"tpe": [[(1, 0.1), *((i, 0.9 + i / 500) for i in range(2, 40))]]},
}
FRONTS = {
    "one point": [(4.0, 0.9)],
    "a line": [(x / 4, 0.9 + x / 400) for x in range(8, 33)],
    "not finite": [(math.nan, 0.5), (4.0, math.inf)],
    "a collapse": [(2.0, 0.1), *((x / 4, 0.9 + x / 400) for x in range(8, 33))],
}


def check_layout(figure):
    """The legend meets no panel and so no curve; no text is cut; ticks of trials are whole."""
    renderer = figure.canvas.get_renderer()
    (legend,) = figure.legends
    box = legend.get_window_extent(renderer)
    page = figure.bbox.padded(1)
    parts = [*figure.axes, *figure.texts, *legend.get_texts()]
    for part in parts:
        shown = part.get_tightbbox(renderer)  # of a panel: with its labels and ticks
        assert page.x0 <= shown.x0 <= shown.x1 <= page.x1, part
        assert page.y0 <= shown.y0 <= shown.y1 <= page.y1, part
    for axes in figure.axes:
        assert not box.overlaps(axes.get_tightbbox(renderer))
        width, height = (axes.bbox.size / figure.dpi).tolist()
        assert width > 2 and height > 2
        for line in axes.lines:
            points = line.get_transform().transform(np.column_stack(line.get_data()))
            assert not any(box.contains(x, y) for x, y in points[np.isfinite(points).all(1)])
            if line.get_drawstyle() == "steps-post":
                ticks = [tick for tick in axes.get_xticks() if axes.get_xlim()[0] <= tick]
                assert ticks and all(tick == int(tick) for tick in ticks)


@pytest.mark.parametrize("percent", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.sampled(2)
def test_the_legend_is_off_the_curves_and_nothing_is_cut(seen, shape, percent):
    title = f"{shape}: a title that is longer than the figure is wide, with $x$ and /a/path" * 2
    told = {"ylabel": "best accuracy so far", "title": title, "percent": percent}
    plot_best_so_far("x.svg", SHAPES[shape], **told, baselines={"float": 0.9611, "chance": 0.1})
    (figure,) = seen
    check_layout(figure)
    named = [t.get_text().replace("\n", " ") for t in figure.legends[0].get_texts()]
    drawn = [label for label, runs in SHAPES[shape].items() if label != "gp" or len(runs[0]) > 1]
    assert [name.replace(" ", "") for name in named[:-2]] == [d.replace(" ", "") for d in drawn]
    assert named[-2].startswith("float (") and named[-1].startswith("chance (")


@pytest.mark.parametrize("panels", [1, 2, 3])
@pytest.mark.parametrize("shape", FRONTS)
@pytest.mark.sampled(1)
def test_fronts_are_laid_out_with_each_budget_named(seen, shape, panels):
    points = FRONTS[shape]
    clouds = [Cloud(f"cost {i}", points, points[-1:], 4.0 + i) for i in range(panels)]
    plot_front("x.svg", clouds, ylabel="accuracy", title="vit on digits")
    check_layout(seen[0])
    named = [text.get_text() for text in seen[0].legends[0].get_texts()]
    assert named == ["measured", "front", *(f"budget: cost {i} {4 + i}" for i in range(panels))]


def test_sweeps_are_laid_out(seen):
    curves = [Curve(name, [(w, 0.94 + w / 200) for w in (2, 4, 8)]) for name in NAMES]
    lines = {"float": 0.9611, "chance": 0.1}
    plot_accuracy("x.svg", curves, lines, xlabel="bits", title="T", ticks=[2, 4, 8])
    check_layout(seen[0])
    low, high = seen[0].axes[0].get_ylim()
    assert 94 < low < 95 and 98 < high < 99
    assert seen[0].legends[0].get_texts()[-1].get_text() == "chance (10.00 %, off the axis)"


def test_a_score_that_runs_away_does_not_flatten_a_sweep(seen):
    r2 = Metric("r2", score=None)
    curves = [Curve("PTQ", [(2, -5e6), (4, 0.8), (6, 0.88), (8, 0.9)])]
    plot_accuracy("x.svg", curves, xlabel="bits", title="T", metric=r2)
    axes = seen[0].axes[0]
    low, high = axes.get_ylim()
    assert 0.7 < low < 0.8 and 0.9 < high < 1 and axes.get_yscale() == "linear"
    assert axes.get_ylabel() == "r2\ndown to -5e+06 below the axis"
    check_layout(seen[0])


def test_seeds_are_error_bars_and_marks_stand_upright(seen):
    curves = [
        Curve("PTQ", [(1, 0.5), (2, 0.9)]),
        Curve("QAT", [(1, 0.7), (2, 0.9)], ranges={1: (0.6, 0.75), 2: (0.9, 0.9)}),
    ]
    told = {"xlabel": "integer bits", "title": "T", "ticks": [1, 2], "marks": {"needed": 2}}
    plot_accuracy("x.svg", curves, {"float": 0.95}, **told)
    (axes,) = seen[0].axes
    (bar,) = (c for c in axes.collections if c.get_segments())
    (segment,) = bar.get_segments()
    assert segment[:, 1].tolist() == pytest.approx([60, 75]) and set(segment[:, 0]) == {1}
    assert axes.get_ylabel() == "accuracy (%)\nmean and range of the seeds"
    assert [t.get_text() for t in seen[0].legends[0].get_texts()][-1] == "needed"
    check_layout(seen[0])


def normal(layer, operand):
    counts = [round(1e4 * math.exp(-((i - 16) ** 2) / 20)) for i in range(32)]
    return Histogram(f"{layer} {operand}", tuple(counts), -2.0, 2.0)


@pytest.mark.parametrize("count", [1, 7, 14])
@pytest.mark.sampled(1)
def test_values_of_formats_stand_under_the_numbers_of_each_layer(seen, count):
    names = [f"vit.encoder.layers.{i}.attention.output.dense" for i in range(count)]
    layers = [[normal(name, operand) for operand in ("weight", "input")] for name in names]
    grids = [EvenGrid("4.2", -2, 1.75, 0.25), EvenGrid("12.10", -2, 1.999, 2**-10)]
    plot_value_grids("x.svg", layers, grids, title="vit on digits")
    (figure,) = seen
    assert len(figure.axes) == 2 * count and figure.get_size_inches()[1] * 160 <= 1500
    renderer, page = figure.canvas.get_renderer(), figure.bbox.padded(1)
    for part in [*figure.axes, *figure.legends]:
        shown = part.get_tightbbox(renderer)
        assert page.x0 <= shown.x0 <= shown.x1 <= page.x1
        assert page.y0 <= shown.y0 <= shown.y1 <= page.y1
    marks = figure.axes[0].collections[1].get_segments()
    low, high = figure.axes[0].get_xlim()
    values = [-2 + 0.25 * k for k in range(16)]
    assert [mark[0][0] for mark in marks] == [x for x in values if low <= x <= high]
    assert [t.get_text() for t in figure.legends[0].get_texts()][1:] == ["4.2", "12.10"]


def test_more_layers_than_a_figure_has_room_for_are_refused():
    with pytest.raises(ConfigError, match="got 15 layers"):
        plot_value_grids("x.svg", [[normal("fc", "weight")]] * 15, [], title="T")


def test_every_curve_reaches_the_last_trial_that_it_measured(seen):
    curves = {"tpe": [[(1, 0.5), (40, 0.9)]], "random": [[(1, 0.5), (2, 0.6), (25, 0.6)]]}
    plot_best_so_far("x.svg", curves, ylabel="accuracy", title="T")
    lines = seen[0].axes[0].lines
    assert [line.get_xdata()[-1] for line in lines] == [40, 25]
    assert [line.get_ydata()[-1] for line in lines] == [90, 60]
    # A marker at the end, so that what the last trial found is seen.
    assert [line.get_markevery()[-1] for line in lines] == [39, 24]


def test_divergences_are_logarithmic_and_shares_never(seen):
    curves = {"tpe": [[(1, 0.9), (2, 0.02), (3, 0.001)]]}
    for percent in (False, True):
        plot_best_so_far("x.svg", curves, ylabel="kl", title="T", percent=percent)
    zero = {"tpe": [[(1, 0.9), (2, 0.02), (3, 0.0)]]}
    plot_best_so_far("x.svg", zero, ylabel="kl", title="T", percent=False)
    close = {"tpe": [[(1, 0.9), (2, 0.3)]]}
    plot_best_so_far("x.svg", close, ylabel="kl", title="T", percent=False)
    kinds = [figure.axes[0].get_yscale() for figure in seen]
    assert kinds == ["log", "linear", "symlog", "linear"]
    # The whole curve is on the axis, but for the first of several levels of shares.
    for figure, first in zip(seen, (0, 1, 0, 0), strict=True):
        low, high = figure.axes[0].get_ylim()
        shown = [low < y < high for y in figure.axes[0].lines[0].get_ydata()]
        assert shown == [False] * first + [True] * (len(shown) - first)


def test_a_collapse_at_the_start_is_cut_off_and_told(seen):
    plot_best_so_far("x.svg", SHAPES["collapse"], ylabel="accuracy", title="T")
    axes = seen[0].axes[0]
    low, high = axes.get_ylim()
    assert 89 < low < 90.4 and 97.8 < high < 99
    assert axes.get_ylabel() == "accuracy (%)\ndown to 10 % below the axis"


def arrows(axes):
    """Where arrows stand: trial, and whether they point down; and the texts beside them."""
    found = [text for text in axes.texts if text.arrow_patch is not None and not text.get_text()]
    named = [text.get_text() for text in axes.texts if text.get_text()]
    return [(text.xy[0], text.xy[1] < 0.5) for text in found], named


def test_the_axis_begins_at_the_second_level_and_an_arrow_tells_the_first(seen):
    curves = {"tpe": [[(0, 0.1), (2, 0.9), (5, 0.95), (9, 0.97)]], "grid": [[(0, 0.93)]]}
    plot_best_so_far("x.svg", curves, ylabel="accuracy", title="T", baselines={"float": 0.96})
    check_layout(seen[0])
    axes = seen[0].axes[0]
    low, high = axes.get_ylim()
    assert 89 < low < 90 and 97 < high < 98
    assert arrows(axes) == ([(2, True)], ["10 %", "grid", "tpe"])
    assert axes.get_ylabel().endswith("down to 10 % below the axis")
    losses = {"tpe": [[(3, 4.0), (4, 0.9), (5, 0.6), (9, 0.55)]]}
    plot_best_so_far("x.svg", losses, ylabel="loss", title="T", percent=False)
    assert arrows(seen[1].axes[0]) == ([(4, False)], ["4"])


def test_many_arrows_have_no_texts_that_would_overlap(seen):
    curves = {name: [[(0, 0.1), (1 + i, 0.9), (20, 0.95)]] for i, name in enumerate("abcdefgh")}
    plot_best_so_far("x.svg", curves, ylabel="accuracy", title="T")
    check_layout(seen[0])
    places, named = arrows(seen[0].axes[0])
    assert places == [(1 + i, True) for i in range(8)] and "10 %" not in named


def test_every_trial_is_a_grey_point_behind_the_curves(seen):
    trials = Trials([(4.0, 0.1), (6.0, math.nan), (8.0, 0.9)], ["trial 0", "trial 1", "trial 2"])
    curves = [Curve("best", [(8.0, 0.9), (5.0, 0.8)], joined=False)]
    told = {"xlabel": "bits", "title": "T", "trials": trials}
    plot_accuracy("x.svg", curves, **told)
    check_layout(seen[0])
    axes = seen[0].axes[0]
    assert axes.collections[0].get_offsets().tolist() == [[4, 10], [8, 90]]
    assert axes.lines[0].get_linestyle() == "None"
    assert [t.get_text() for t in seen[0].legends[0].get_texts()] == ["every trial", "best"]
    (chart,) = accuracy_charts(curves, **told)
    grey, best = chart.series
    assert (grey.faint, grey.line, best.line, chart.x.log) == (True, "none", "none", False)
    assert [(mark.x, mark.y, mark.text) for mark in grey.marks] == [
        (4.0, 0.1, "trial 0"),
        (8.0, 0.9, "trial 2"),
    ]


def test_cells_of_a_map_have_the_texts_that_they_are_given(seen):
    cells = {("fc1", "trial 3"): 16.0, ("fc2", "trial 3"): 8.0}
    texts = {("fc1", "trial 3"): "16.8", ("fc2", "trial 3"): "8.4"}
    told = {"xlabel": "", "measure": "bits", "title": "T", "texts": texts}
    plot_layer_map("x.svg", cells, **told)
    assert [text.get_text() for text in seen[0].axes[0].texts] == ["16.8", "8.4"]
    (chart,) = layer_map_charts(cells, **told)
    assert chart.texts == (("16.8",), ("8.4",)) and chart.values == ((16.0,), (8.0,))
    assert seen[0].axes[1].get_ylabel() == "bits"


def test_seeds_are_a_band_that_the_axis_explains(seen):
    runs = [[(1, 0.5), (2, 0.7)], [(1, 0.4), (2, 0.6)], [(1, 0.45), (2, 0.9)]]
    plot_best_so_far("x.svg", {"tpe": runs}, ylabel="accuracy", title="T")
    axes = seen[0].axes[0]
    assert axes.get_ylabel() == "accuracy (%)\nmedian and range of the seeds"
    assert axes.lines[0].get_ydata().tolist() == [45, 70]
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (40, 90)


def test_labels_are_drawn_as_they_are_written(seen):
    labels = ["$x$", "_own", "a\x1b[31mb", ""]
    curves = {label: [[(1, 0.5), (2, 0.6)]] for label in labels}
    plot_best_so_far("x.svg", curves, ylabel="a", title="$x_1$ \x1b[0m")
    named = [text.get_text().strip() for text in seen[0].legends[0].get_texts()]
    assert named[:2] == [r"\$x\$", "_own"] and len(named) == 4
    assert not any("\x1b" in text for text in (*named, seen[0].texts[0].get_text()))


@pytest.mark.long
def test_coinciding_curves_lie_side_by_side_and_curves_have_their_names_at_their_ends(seen):
    formats = [f"format_{i}" for i in range(13)]
    curves = {name: [[(1, 0.5), (8, 0.95)]] for name in formats}
    curves |= {"other": [[(1, 0.4), (6, 0.6)]], "last": [[(2, 0.95), (8, 0.96)]]}
    plot_best_so_far("x.svg", curves, ylabel="accuracy", title="T")
    (figure,) = seen
    check_layout(figure)
    axes, renderer = figure.axes[0], figure.canvas.get_renderer()
    assert [line.get_ydata()[-1] for line in axes.lines] == [*[95] * 13, 60, 96]
    ends = [line.get_transform().transform((8, 95))[1] * 72 / figure.dpi for line in axes.lines]
    exact = axes.transData.transform((8, 95))[1] * 72 / figure.dpi
    assert np.diff(ends[:13]) == pytest.approx(20 / 13)
    assert np.mean(ends[:13]) == pytest.approx(exact)
    assert ends[13:] == pytest.approx([exact, exact])
    assert "curves with equal ends are drawn slightly apart" in axes.get_ylabel()
    named = {text.get_text(): text for text in axes.texts}
    assert list(named) == ["other", *formats, "last"]  # from the lowest up
    colors = {label: line.get_color() for label, line in zip(curves, axes.lines, strict=True)}
    assert {label: text.get_color() for label, text in named.items()} == colors
    boxes = [Text.get_window_extent(text, renderer) for text in named.values()]  # no lines
    assert all(low.y1 <= high.y0 + 2 for low, high in itertools.pairwise(boxes))
    plot_best_so_far("x.svg", SHAPES["long labels"], ylabel="accuracy", title="T")
    assert not seen[1].axes[0].texts
