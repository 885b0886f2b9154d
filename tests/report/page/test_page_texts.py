"""Texts of pages: words for names, captions, one form of numbers, steps, narrow windows."""

import json
import re
from dataclasses import replace

import pytest

from chop.formats import Integer, MXInt
from chop.report.charts.chart import Axis, Bar, BarChart, HeatMap, LineChart, Mark, Series
from chop.report.document import Document, build_document, page_table
from chop.report.format_legend import format_legend
from chop.report.page.captions import caption
from chop.report.page.page import PageRun, clean_text, picture, render
from chop.report.page.svg import NARROW, svg
from chop.report.report import Cell, Step, Table, Tile
from chop.report.words import WORDS, in_words
from tests.browsing import needs_browser, opened
from tests.report.page.test_page import HOSTILE, Reader, build_report, read_like

LINES = LineChart(
    "accuracy of a model",
    Axis("activation_bits"),
    Axis("accuracy", percent=True),
    (
        Series("a", (Mark(4, 0.5, 0.4, 0.6), Mark(8, 0.75))),
        Series("b", (Mark(4, 0.7),), faint=True),
    ),
    {"float": 0.9},
    {"budget": 4},
)


def page_of(document):
    return render([PageRun("a", read_like(), document)])


@pytest.mark.parametrize("name", WORDS)
def test_names_of_columns_are_words(name):
    table = page_table(Table(f"by {name}", [{name: 1, "layer": name}], shaded=(name,)))
    assert name not in table.columns and table.title == f"by {WORDS[name]}"
    assert table.shaded == table.columns[:1]
    assert table.texts[0][1] == name  # a layer may have this name


@pytest.mark.parametrize("name", ["model.lut", "lut_1", "my-lut", "lut.0", "frac_widths", "x_ff"])
def test_names_of_layers_stay(name):
    assert in_words(name) == name


def test_charts_have_words_for_names():
    report = replace(
        build_report(), charts=[LINES], tiles=[Tile("size_bytes of all", Cell(1, "1"))]
    )
    document = build_document(report)
    chart = next(each for each in document.charts if each.title == LINES.title)
    assert chart.x.label == "bits per input" and document.tiles[0].label == "bytes of all"


def test_captions_say_what_is_seen():
    told = caption(LINES)
    assert "accuracy" in told and "Horizontal axis: activation_bits" in told
    assert "float (90 %)" in told and "budget (4)" in told and "Gray" in told
    assert "interval" in told
    bars = BarChart("t", Axis("speed"), (Bar("a", (1.0,), hollow=True),), limits={"float": 1.0})
    assert "speed" in caption(bars) and "Hollow" in caption(bars) and "float (1)" in caption(bars)
    cells = HeatMap("t", ("fc1",), ("4",), ((0.5,),), xlabel="bits", ylabel="layer")
    assert "Rows: layer. Columns: bits." in caption(cells)
    assert "The more a cell stands out" in page_of(Document("t", charts=(cells,)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("97.5%, 8 % and 100%.", "97.5 %, 8 % and 100 %."),
        ("(95% interval 3% to 4%)", "(95 % interval 3 % to 4 %)"),
        ("a%20b and %s and 5%d", "a%20b and %s and 5%d"),
        ("a\x1b[2Jb\n3%", "a\\x1b[2Jb\n3 %"),
    ],
)
def test_percentages_have_one_form(text, expected):
    assert clean_text(text) == expected


def test_large_counts_are_grouped_in_all_tables():
    table = page_table(
        Table("t", [{"n": 33600, "b": True, "c": 9999, "y": 999, "f": 1e6, "s": "33600"}])
    )
    assert table.texts[0] == ("33,600", "yes", "9,999", "999", "1e+06", "33600")
    assert table.values[0][0] == 33600


@pytest.mark.parametrize(
    "chart",
    [LINES, BarChart("t", Axis("x"), tuple(Bar("n" * 80, (float(i),)) for i in range(3)))],
    ids=lambda chart: chart.kind,
)
def test_charts_have_a_drawing_for_narrow_windows(chart):
    shown = picture(chart)
    for drawn, width in ((shown.parts[0], 900), (shown.narrow[0], NARROW)):
        box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
        assert float(box[1]) == width and "max-width" not in drawn
        places = [float(x) for x in re.findall(r' (?:x|cx|x1|x2)="([-\d.]+)"', drawn)]
        assert min(places) >= 0 and max(places) <= width
    assert page_of(Document("t", charts=(chart,))).count("<svg viewBox") == 2


@pytest.mark.parametrize("columns", [1, 3, 40, 120])
def test_heat_maps_are_as_wide_as_the_text(columns):
    names = tuple(f"column {n}" for n in range(columns))
    chart = HeatMap("t", ("a", "b"), names, ((0.5,) * columns, (None,) * columns))
    for width in (900, NARROW):
        box = re.search(r'viewBox="0 0 ([\d.]+) ', svg(chart, width))
        assert float(box[1]) >= width
    assert float(re.search(r'viewBox="0 0 ([\d.]+) ', svg(chart, 900))[1]) == 900


def test_a_legend_has_each_kind_of_format_once():
    found = [Integer(8, 5), Integer(4, "auto"), Integer(8, 5), MXInt(4)]
    table = format_legend(found)
    assert [row["format"] for row in table.rows] == ["integer 8.5, integer 4.auto", MXInt(4).label]
    assert "8 bits, 5 of them" in table.rows[0]["what it is"]
    assert format_legend([]) is None
    many = format_legend([Integer(8, n) for n in range(9)])
    assert many.rows[0]["format"].endswith(" and 3 more")


def test_steps_are_last_and_escaped():
    steps = (Step(HOSTILE, "chop export a\nchop bench b"), Step("x", HOSTILE))
    text = page_of(Document("t", steps=steps))
    page = Reader(text)
    assert page.open == [] and page.scripts == 1 and "<img" not in text and "\x1b" not in text
    assert text.rindex("<h2") == text.index('<h2 id="run1-next">')
    assert "chop export a\nchop bench b</pre>" in text
    assert "Next steps" not in page_of(Document("t"))


MEASURED = """
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument;
  const all = (kind) => [...page.querySelectorAll(kind)];
  const cut = all(".wide, .panel, pre").filter(
    (each) => each.clientWidth > 0 && each.scrollWidth > each.clientWidth + 1);
  told([page.documentElement.scrollWidth, frame.contentWindow.innerWidth,
        cut.map((each) => each.className),
        all(".histograms .panel").map((each) => Math.round(each.getBoundingClientRect().width)),
        all(".lines svg").map((each) => each.getBoundingClientRect().width > 0)]);
};
frame.srcdoc = %s;
"""


@pytest.mark.sampled(1)
@needs_browser
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_cut_and_histograms_are_as_wide(width, tmp_path):
    row = {f"column number {n}": Cell(n / 3, f"{n / 3:.4%}") for n in range(12)}
    report = build_report()
    panels = next(c for c in report.charts if c.kind == "histograms")
    panels = replace(panels, panels=panels.panels[:1] * 4)
    charts = [panels, LINES]
    long = Table("two columns", [{"format": "integer 8.5, " * 9, "what it is": "a word " * 30}])
    report = replace(
        report, charts=charts, tables=[Table("wide", [row] * 3), long], steps=[Step("a", "b " * 99)]
    )
    text = page_of(build_document(report))
    # An inner frame is as narrow as a telephone; the window of a browser without a screen is not.
    framed = f"<body><iframe style='width:{width}px;height:900px'></iframe></body>"
    script = MEASURED % json.dumps(text).replace("<", r"\u003c")
    taken, inner, cut, sizes, drawn = opened(framed, script, tmp_path)
    assert taken <= inner <= width
    assert len(set(sizes)) == 1 and len(sizes) == 4
    assert drawn.count(True) == drawn.count(False)
    if width == 400:
        assert cut == []
