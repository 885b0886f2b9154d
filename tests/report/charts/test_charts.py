"""Charts: one of every plot, what they leave out, and how several runs share them."""

import importlib
import inspect
import math
import pkgutil
import time
from dataclasses import replace

import pytest

import chop.report.charts
import chop.report.plots
from chop.report.charts.accuracy import Curve, accuracy_charts
from chop.report.charts.chart import Bar, GraphNode, HeatMap, Mark, Series
from chop.report.charts.evaluation import TaskShares, divergence_charts, score_charts
from chop.report.document import Document, build_document, read_document
from chop.report.page.files import write_page
from chop.report.page.page import PAGE, PageRun, render
from chop.report.page.svg import svg
from chop.report.page.ticks import decades, linear_ticks
from chop.report.report import Cell, Report, Table, Tile, figure
from tests.actions.test_job import Settings
from tests.report.page.test_page import (
    BARS,
    GRAPH,
    LINES,
    Reader,
    build_report,
    job_of,
    read_like,
    run_job,
)


def test_each_of_several_charts_on_the_same_axes_is_compared():
    charts = (LINES, replace(LINES, title="second"))
    runs = [PageRun(name, read_like(), Document(name, charts=charts)) for name in "ab"]
    compared = render(runs).partition('class="run"')[0]
    assert compared.count("<figcaption>") == 2 and "second" in compared


def test_numbers_that_are_not_finite_are_blank_and_the_page_can_be_made_again(tmp_path):
    nothing, much = math.nan, math.inf
    report = replace(
        build_report(),
        tables=[Table("t", [{"loss": Cell.of(much)}, {"loss": 0.5}], shaded=("loss",))],
        tiles=[Tile("loss", Cell.of(nothing))],
        charts=[
            replace(LINES, levels={"float": much, "best": 0.9}, limits={"budget": nothing}),
            replace(
                LINES, series=(Series("one", (Mark(much, 0.5), Mark(1, nothing), Mark(2, 1))),)
            ),
            replace(BARS, bars=(Bar("broken", (nothing, 1.0)), *BARS.bars)),
            replace(GRAPH, nodes=(GraphNode(("x",), "input", numbers={"error": nothing}),)),
        ],
    )
    run_job(job_of(report), Settings(tmp_path))
    written = (tmp_path / PAGE).read_text()
    assert write_page([tmp_path], tmp_path / "again.html").read_text() == written
    page = Reader(written)
    assert all(map(math.isfinite, page.numbers))
    found = read_document(tmp_path).charts
    assert found[-4].levels == {"best": 0.9} and [m.x for m in found[-3].series[0].marks] == [2]
    assert [bar.label for bar in found[-2].bars] == ["auto", "rows"]


def test_a_large_heat_map_is_drawn_in_one_walk():
    names = tuple(map(str, range(150)))
    values = tuple(tuple(float(i * j) for j in range(150)) for i in range(150))
    start = time.process_time()
    text = svg(HeatMap("t", names, names, values))
    assert text.count('class="cell h0"') > 0 and text.count('class="cell h8"') > 0
    assert time.process_time() - start < 5  # a minute where each cell looks at all


def test_a_figure_without_content_has_no_chart():
    empty = [Curve("PTQ", [(4, 0.5)])]
    nothing = figure(accuracy_charts, empty, xlabel="bits", title="T")
    assert nothing.charts == []
    figures = {"a.svg": nothing, "b.svg": lambda path: path}
    assert build_document(Report("t", {}, {}, [], figures=figures)).charts == ()


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3e-7, 4e-7), (1e8, 1.1e8), (5, 5), (0.1, 0.100001)]
)
def test_ticks_are_round_and_between_the_ends(low, high):
    found = linear_ticks(low, high)
    assert 1 <= len(found) <= 9 and found == sorted(found)
    assert all(low - 1e-9 * abs(high) <= tick <= high + 1e-9 * abs(high) for tick in found)
    assert decades(1e-9, 1e9)[0] == pytest.approx(1e-9) and len(decades(1e-9, 1e9)) <= 9


def test_every_chart_maker_has_a_plotting_function_with_its_arguments():
    names = [each.name for each in pkgutil.iter_modules(chop.report.charts.__path__)]
    modules = [importlib.import_module(f"chop.report.charts.{name}") for name in names]
    makers = {
        name: found
        for module in modules
        for name, found in vars(module).items()
        if name.endswith("_charts") and inspect.isfunction(found)
    }
    plots = {name: f for name, f in vars(chop.report.plots).items() if name.startswith("plot_")}
    signatures = [list(inspect.signature(each).parameters) for each in plots.values()]
    arguments = [["path", *inspect.signature(each).parameters] for each in makers.values()]
    assert len(plots) == len(makers) >= 10 and sorted(signatures) == sorted(arguments)


def test_an_evaluation_has_charts_of_its_figures():
    (curve,) = divergence_charts([0.0, 0.5, math.inf, 0.25], "KL")
    assert [(m.x, m.y) for m in curve.series[0].marks] == [(0.5, 0.5), (0.25, 0.75)]
    bars = [TaskShares("piqa", (0.5, 0.125), (0.75, None)), TaskShares("boolq", (0.25, None), None)]
    (found,) = score_charts(bars, "tasks")
    assert [(bar.label, bar.parts, bar.low, bar.high) for bar in found.bars] == [
        ("piqa, float model", (0.75,), None, None),
        ("piqa", (0.5,), pytest.approx(0.255, abs=1e-4), pytest.approx(0.745, abs=1e-4)),
        ("boolq", (0.25,), None, None),
    ]
