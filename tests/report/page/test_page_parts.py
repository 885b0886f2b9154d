"""Parts of a page: assumptions, titles, tables, captions and command lines."""

import re
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from chop.report.charts.chart import Axis, Bar, BarChart, HeatMap, LineChart, Mark, Series
from chop.report.charts.ratios import ratio_charts
from chop.report.document import Document, PageText, build_document, page_table
from chop.report.page.captions import caption
from chop.report.page.page import PageRun, coded, render, unbroken
from chop.report.page.svg import NARROW, WIDE, svg
from chop.report.report import Cell, Table, Tile
from chop.report.words import parsed_time, time_text
from tests.report.page.test_page import HOSTILE, Reader, build_report, read_like


def page_of(document):
    return render([PageRun("a", read_like(), document)])


def build_table(title, *rows):
    return page_table(Table(title, rows))


def test_assumptions_are_not_called_warnings():
    text = page_of(Document("t", assumptions=("Rows: 97.5% of them.",), warnings=("Few rows.",)))
    assumed = re.search(r'<section class="assumptions".*?</section>', text, re.S)[0]
    assert "Rows: 97.5 % of them." in assumed and "warnings" not in assumed
    assert text.count('class="warnings"') == 1


def test_options_in_sentences_do_not_break():
    parts = {"assumptions": ("--a b",), "warnings": ("--b c",), "blocks": (PageText("a --c"),)}
    assert re.findall(r'<span class="option">(.*?)</span>', page_of(Document("t", **parts))) == [
        *("--a", "--b", "--c"),
    ]


def test_a_title_is_said_once():
    one, two = build_table("Times", {"a": 1}), build_table("Others", {"a": 2})
    blocks = (PageText("Times", 2), one, two, PageText("loss (less is better):"))
    text = page_of(
        Document("t", blocks=(*blocks, build_table("m: loss (less is better)", {"a": 3})))
    )
    assert re.findall(r'class="caption">(.*?)</span>', text)[:3] == [
        "",
        "Others",
        "m: loss (less is better)",
    ]
    assert text.count("<h3>Times</h3>") == 1 and "<p>loss (less is better):</p>" not in text
    # The region of a table keeps its name.
    assert 'aria-label="Times"' in text


def test_gaps_are_dashes_and_long_names_may_break():
    name = "model.layers.0.self_attn.q_proj"
    rows = [{"layer": name, "kl": kl, "none": "-", "word": "x y"} for kl in ("", "0.5")]
    text = page_of(Document("t", tables=(build_table("", *rows),)))
    # A column without any value is left out.
    assert '<th scope="col">none' not in text and "KL divergence</th>" in text
    assert ">-</td>" in text and 'class="short">x y</td>' in text
    shown = re.search(r"<td[^>]*>(model.*?)</td>", text)[1]
    assert shown.replace("<wbr>", "") == name and shown.count("<wbr>") == 4
    assert Reader(page_of(Document("t", tables=(build_table("", {"a": HOSTILE * 9}),)))).open == []


def test_options_of_a_command_break_on_no_line():
    command = "chop compress --max-drop 0.01 -q --out 'a b'"
    assert re.sub("<.*?>", "", str(coded(command))).replace("&#39;", "'") == command
    assert coded(command).count('class="option"') == 3
    assert "<img" not in coded(f"chop --out {HOSTILE}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("93.5 % (89.2 to 96.2)", "93.5~% (89.2~to~96.2)"),
        ("4.3 (a sentence that is long in brackets)", "4.3 (a sentence that is long in brackets)"),
    ],
)
def test_intervals_break_on_no_line(text, expected):
    assert unbroken(text).replace("\u00a0", "~") == expected
    tile = Tile("t", Cell(1, text))
    shown = page_of(build_document(replace(build_report(), tiles=[tile])))
    assert unbroken(text) in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-28T12:06:20+00:00", "2026-11-28 12:06 UTC"),
        ("2026-11-28T12:06:20+02:00", "2026-11-28 10:06 UTC"),
        ("2026-11-28", "2026-11-28"),
        ("0001-01-01T00:00:00+23:00", "0001-01-01T00:00:00+23:00"),
    ],
)
def test_times_are_for_people(text, expected):
    assert time_text(text) == expected
    assert (parsed_time(text) is None) == (text == expected)
    assert expected in render([PageRun("a", replace(read_like(), started=text), Document("t"))])


def test_captions_say_scale_levels_and_intervals():
    marks = (Mark(1, 0.001), Mark(2, 0.5, 0.4, 0.6))
    chart = LineChart("t", Axis("trial"), Axis("loss"), (Series("a", marks),))
    assert "Vertical axis: loss (logarithmic scale). Horizontal axis: trial." in caption(chart)
    assert "Error bars: range or interval." in caption(chart)
    percent = replace(chart, y=Axis("accuracy", percent=True), spread="95 % interval")
    percent = replace(percent, series=(Series("a", (Mark(1, 0.94), Mark(2, 0.96, 0.95, 0.97))),))
    said = caption(replace(percent, levels={"float": 0.955, "chance": 0.123456}))
    assert "Dashed: float (95.5 %). Off the axis: chance (12.35 %)." in said
    assert "Error bars: 95 % interval." in said and "logarithmic" not in said
    bars = BarChart("t", Axis("x", log=False), (Bar("a", (1.0,), 0.9, 1.1),), spread="range")
    assert "Error bars: range." in caption(bars)
    cells = HeatMap("t", ("fc",), ("4",), ((8.0,),), texts=(("8.4",),))
    assert caption(cells) == "The more a cell stands out, the more bits."


def test_names_of_near_levels_do_not_overlap():
    marks = (Mark(1, 0.1), Mark(2, 0.96))
    chart = LineChart("t", Axis("x"), Axis("y", percent=True), (Series("a", marks),))
    levels = {"c": 0.1, "a": 0.961, "b": 0.955, "d": 0.955, "far": 0.5}
    text = svg(replace(chart, levels=levels))
    places = {
        label: float(at) for at, label in re.findall(r'y="([0-9.]+)"[^>]*name[^>]*>([a-z]+)<', text)
    }
    assert places.keys() == levels.keys()
    ordered = sorted(places.values())
    assert min(b - a for a, b in pairwise(ordered)) >= 10.9
    assert ordered[0] == places["a"] and ordered[-1] == places["c"]


def test_ratios_say_their_interval_and_baseline():
    by_time = SimpleNamespace(median=2.0, low=2.0, high=2.0, spans_one=False, is_known=False)
    (chart,) = ratio_charts([SimpleNamespace(name="by time", ratio=by_time)], "t", "float")
    assert "Error bars" not in caption(chart) and chart.spread == "95 % interval"
    assert list(chart.limits) == ["float"] and chart.x.label == "times as fast as float"


@pytest.mark.parametrize("values", [(0.00272, 0.00276), (1234567.0, 2345678.0), (1.0, 5.0)])
def test_long_ticks_are_clear_of_the_name_of_their_axis(values):
    """The name ends 18 pixels from the left. A digit of DejaVu Sans is at most 7 pixels wide."""
    marks = tuple(Mark(x, y) for x, y in enumerate(values))
    axes = Axis("x", log=False), Axis("loss", log=False)
    for width in (WIDE, NARROW):
        text = svg(LineChart("t", *axes, (Series("a", marks),)), width)
        ticks = re.findall(r'<text x="([0-9.]+)" y="[0-9.]+" text-anchor="end">([^<]+)<', text)
        assert len(ticks) > 2 and min(float(x) - 7 * len(each) for x, each in ticks) >= 18
