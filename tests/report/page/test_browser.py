"""The page in a browser: nothing is fetched, nobody is shut out, tables and graph work."""

from dataclasses import replace
from pathlib import Path

import pytest

from chop.report.charts.chart import (
    Axis,
    Bar,
    BarChart,
    GraphChart,
    GraphNode,
    Histogram,
    Histograms,
    LineChart,
    Mark,
    Series,
)
from chop.report.document import build_document
from chop.report.page.page import PageRun, render
from chop.report.report import Cell, Tile
from tests.browsing import axe_findings, needs_browser, opened
from tests.report.page.test_page import build_report, read_like

pytestmark = needs_browser


def page(*names):
    runs = [PageRun(name, read_like(), build_document(build_report(name))) for name in names]
    return render(runs)


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.sampled(1)
def test_no_serious_finding_of_axe(theme, width, tmp_path):
    assert axe_findings(page("one", "two"), tmp_path, theme, width)[1] == []


def test_tables_sort_and_copy_and_the_graph_unfolds(tmp_path):
    script = (Path(__file__).parent / "use_page.js").read_text()
    told = opened(page("one"), script, tmp_path)
    first, rising, falling = told["orders"]
    assert sorted(first) == sorted(rising) and rising == falling[::-1] != first
    numbers = [float(text.removesuffix(" %").replace("-", "nan")) for text in rising]
    assert numbers == sorted(numbers)
    markdown, table, latex = told["written"]
    assert markdown.splitlines()[1].startswith("| --- |")
    assert "PTQ" in markdown and ",0.9," in table and ",0.4,0.6" in table
    assert latex.startswith("\\begin{tabular}{lllll}") and "90 \\%" in latex
    marked = "x, slowest"
    whole = [marked, "net.fc1", "net.act"]
    assert told["graph"] == [whole, [marked, "net (2)"], whole]
    assert told["found"] == ["net.fc1"]
    assert told["marked"] == ["xslowest: 1 lane"] and told["shaded"] == ["net.act"]
    assert told["legend"].startswith("slowest: sets the pace. Thick green border: quantized. ")
    # Paper has all three rows, whatever was in view.
    zoomed, printed, after = told["views"]
    assert zoomed == after and printed[1] <= 0 and printed[3] > 3 * 40
    assert "stays" not in told["words"] and "zeros: 0.5" in told["words"]
    assert told["tip"].splitlines() == ["PTQ", "bits 4", "accuracy 50 % (40 % to 60 %)"]


WORDS_ON_ONE_LINE = """
const broken = [], texts = document.createTreeWalker(document.querySelector('.tiles'), 4);
while (texts.nextNode()) {
  for (const word of texts.currentNode.data.matchAll(/\\S+/g)) {
    const range = document.createRange();
    range.setStart(texts.currentNode, word.index);
    range.setEnd(texts.currentNode, word.index + word[0].length);
    const lines = new Set([...range.getClientRects()].map((each) => each.top));
    if (lines.size > 1) { broken.push(word[0]); }
  }
}
told([broken, document.querySelector('.tiles').scrollWidth]);
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", [320, 430, 1280])
def test_no_value_of_a_tile_is_broken(width, tmp_path):
    values = ("12,345,678,901.2", "no-gap_group_affine4", "3")
    long = "x" * 100
    tiles = [Tile(f"value {n}", Cell(n, text), "of many") for n, text in enumerate(values)]
    tiles.append(Tile("name", Cell(0, long)))
    page = render(
        [PageRun("a", read_like(), build_document(replace(build_report("a"), tiles=tiles)))]
    )
    page = page.replace("<body", f"<body style='width: {width}px'", 1)
    broken, taken = opened(page, WORDS_ON_ONE_LINE, tmp_path)
    assert broken == [long] and taken < width


def test_long_names_leave_a_page_as_narrow_as_the_window(tmp_path):
    long = "x" * 300
    axes = Axis("bits", log=False), Axis("loss", log=False)
    series = tuple(Series(f"{n}{long}", (Mark(1, n), Mark(2, n))) for n in range(2))
    node = GraphNode((long, long), long, (long,), brief=long, marks=(long,))
    charts = (
        LineChart(long, *axes, series),
        BarChart(long, axes[0], (Bar(long, (1.0,)),), limits={long: 1.0}),
        Histograms(long, (Histogram(long, (1, 2), -1, 1, {long: (0,)}),)),
        GraphChart(long, (node,), {long: long}, {long: long}),
    )
    document = build_document(replace(build_report(long), charts=charts))
    script = (
        "told([document.documentElement.scrollWidth, document.documentElement.clientWidth,"
        "document.querySelector('.legend').scrollWidth])"
    )
    whole, window, legend = opened(
        render([PageRun(long, read_like(), document)]), script, tmp_path, 500
    )
    assert legend < whole == window
