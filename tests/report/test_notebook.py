"""Notebooks: graphs, figures and search results have the representations that IPython shows."""

import copy
import json
import pickle
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from torch import nn

from chop import MaseGraph, passes
from chop.base.displayed import Displayed
from chop.base.files import Picture
from chop.base.tables import html_table
from chop.report.charts.accuracy import Curve
from chop.report.notebook import with_display
from chop.report.plots import plot_accuracy
from chop.report.report import Cell, Heading, Note, Report, Table, write_document, write_report
from chop.runs import as_json
from chop.search import Constraint, Goal, Result, TrialRecord
from tests.pages import ROOT

SPACE = "http://www.w3.org/2000/svg"
SVG = f"{{{SPACE}}}svg"
PROLOGUE = '<?xml version="1.0"?>\n<!DOCTYPE svg PUBLIC "x" "y.dtd">\n'


@pytest.fixture
def mg():
    return MaseGraph(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))


def test_a_graph_and_its_drawing_are_pictures(mg, tmp_path):
    small, _ = passes.quantize_transform_pass(
        mg, {"by": "type", "linear": {"config": {"name": "mxint", "width": 4}}}
    )
    written = small.draw(tmp_path / "graph.svg")
    assert written == tmp_path / "graph.svg" and isinstance(written, Path)
    assert written._repr_svg_() == small._repr_svg_() == written.read_text()
    assert ElementTree.fromstring(written._repr_svg_()).tag == SVG
    assert "mxint" in small._repr_svg_() and "mxint" not in mg._repr_svg_()
    assert ElementTree.fromstring(mg.draw(tmp_path / "both", compare=small)._repr_svg_()).tag == SVG


@pytest.mark.parametrize(("suffix", "shown"), [("svg", "svg"), ("png", "png"), ("pdf", "neither")])
def test_a_figure_is_shown_by_its_kind(tmp_path, suffix, shown):
    curves = [Curve("PTQ", [(4, 0.8), (8, 0.9)])]
    path = tmp_path / f"accuracy.{suffix}"
    figure = plot_accuracy(path, curves, xlabel="bits", title="net on data")
    assert figure == path and type(pickle.loads(pickle.dumps(figure))) is Picture
    svg, png = figure._repr_svg_(), figure._repr_png_()
    gone = Picture(tmp_path / f"gone.{suffix}")
    assert gone._repr_svg_() is None and gone._repr_png_() is None
    assert (svg is not None) == (shown == "svg") and (png is not None) == (shown == "png")
    assert shown != "svg" or ElementTree.fromstring(svg).tag == SVG
    assert shown != "png" or png.startswith(b"\x89PNG")


def test_a_search_shows_its_best_trials():
    values = ({"accuracy": 0.5, "bits": 3.0}, {"accuracy": 0.9, "bits": 8.0})
    trials = [
        TrialRecord(n, "measured", {"fc<1>": "4.auto"}, str(n), value)
        for n, value in enumerate(values)
    ]
    result = Result((Goal("accuracy"), Constraint("bits", 4.0)), tuple(trials))
    page = ElementTree.fromstring(f"<div>{result._repr_html_()}</div>")
    cells = [cell.text for cell in page.iter("td")]
    assert page.find("p").text == "2 trials: 2 measured"
    assert cells == [
        "0",
        "0.5",
        "3",
        "yes",
        "fc<1>: 4.auto",
        "1",
        "0.9",
        "8",
        "no",
        "fc<1>: 4.auto",
    ]
    assert "<table>" not in Result((Goal("accuracy"),), ())._repr_html_()


def list_trials(count):
    found = [
        TrialRecord(n, "measured", {f"layer.{i}": "4.auto" for i in range(50)}, str(n), {"y": n})
        for n in range(count)
    ]
    return Result((Goal("y"),), tuple(found))


@pytest.mark.parametrize(("count", "told"), [(0, "0 trials: none"), (1, "1 trial: 1 measured")])
def test_a_search_prints_how_its_trials_ended(count, told):
    assert str(list_trials(count)).splitlines()[0].strip() == told


def test_a_long_search_prints_its_best_trials_alone(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    told = str(list_trials(40))
    rows = [line.split("│")[1].strip() for line in told.splitlines() if line.startswith("│")]
    assert [row for row in rows if row] == [str(n) for n in range(39, 29, -1)]
    assert "40 trials: 40 measured" in told and "TrialRecord" not in told


def test_a_table_escapes_what_others_wrote():
    page = ElementTree.fromstring(html_table([{"<b>": "<script>&\x1b[2J", "x": None}]))
    assert [cell.text for cell in page.iter("th")] == ["<b>", "x"]
    assert [cell.text for cell in page.iter("td")] == ["<script>&\\x1b[2J", "-"]
    assert html_table([]) == ""


def build_report(result, **named):
    blocks = [
        Heading("Formats"),
        Table("net on data", [{"format": "8.auto", "bits": Cell.of(8.0, ".2f")}]),
        Note("<2 rows>"),
        Note("for the terminal", is_written=False),
        Note(None),
    ]
    return Report("net on data", {"table.md": blocks}, result, [], closing=["saved."], **named)


def test_columns_of_a_document_are_in_words(tmp_path):
    write_document(tmp_path / "report.md", [Table("", [{"module": "fc", "rom_ramb18": 2}])])
    first, *_ = (tmp_path / "report.md").read_text().splitlines()
    assert first == "| module | ROM: block memories of 18 Kbit |"


def test_assumptions_are_below_the_title_of_a_document(tmp_path):
    write_report(build_report({}, assumptions=["Rows were split off."]), tmp_path)
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert [*filter(None, lines)][1:3] == ["Assumptions:", "- Rows were split off."]
    assert lines[0].endswith("# Formats")


@pytest.mark.parametrize("result", [{"saved": None, "rows": [1]}, [{"width": 4}], []])
def test_a_jobs_result_is_shown_as_its_report(result, tmp_path):
    figures = {"accuracy.svg": None, "gone.svg": None, "accuracy.png": None}
    (tmp_path / "accuracy.svg").write_text(f"{PROLOGUE}<svg xmlns='{SPACE}'/>")
    shown = with_display(build_report(result, figures=figures), tmp_path)
    assert shown == result and isinstance(shown, type(result))
    assert json.loads(json.dumps(shown)) == result
    page = ElementTree.fromstring(f"<div>{shown._repr_html_()}</div>")
    assert [part.tag for part in page] == ["h3", "h4", "table", "p", "p", SVG]
    assert [cell.text for cell in page.iter("td")] == ["8.auto", "8.00"]
    assert [part.text for part in page.iter("p")] == ["<2 rows>", "saved."]


def test_a_folder_has_no_say_over_the_terminal(tmp_path):
    told = str(with_display(build_report([]), tmp_path / "a\x1b[2J"))
    assert told.endswith(r"a\x1b[2J/report.html") and "\x1b" not in told


def test_a_search_by_a_job_is_shown_as_its_report(tmp_path):
    found = list_trials(40)
    best = found.best
    shown = with_display(build_report(found), tmp_path)
    assert shown == found and type(shown) is Result and shown.best is best
    assert as_json(shown) == as_json(found) and repr(found) != repr(shown) == str(shown)
    assert str(shown).splitlines()[0] == "saved."
    assert str(shown).splitlines()[-1] == f"Page of these results: {tmp_path}/report.html"
    assert "<h4>Formats</h4>" in shown._repr_html_() and "40 trials" in found._repr_html_()
    assert str(pickle.loads(pickle.dumps(shown))) == str(copy.copy(shown)) == str(shown)


@pytest.mark.parametrize("folder", ["actions", "search", "studies"])
def test_what_jobs_return_is_displayed(folder):
    code = "\n".join(path.read_text() for path in (ROOT / "src/chop" / folder).rglob("*.py"))
    name = r"(\w*Comparison|Evaluation|\w*Result)"
    results = re.findall(rf"^(?:@dataclass(.*)\n)?class {name}\b(.*):$", code, re.MULTILINE)
    known = {"(Displayed)", "(Result)"}
    found = {(made, bases) for made, name, bases in results if name != "RowResult"}
    assert found and {bases for _, bases in found} <= known
    assert {made for made, _ in found} == {"(frozen=True, repr=False)"}  # or it has its own


@dataclass(frozen=True, repr=False)
class Point(Displayed):
    x: int
    name: str = "a"
    large: bytes = field(default=b"", repr=False)


def test_a_result_without_a_job_prints_as_python_prints_it():
    assert repr(Point(3)) == "Point(x=3, name='a')" and Point(3)._repr_html_() is None


@pytest.mark.parametrize("result", [None, 4, "text", (1, 2)])
def test_other_results_stay_as_they_are(result, tmp_path):
    assert with_display(build_report(result), tmp_path) is result


@pytest.mark.parametrize("result", [{"saved": None, "rows": [1]}, [{"width": 4}]])
@pytest.mark.parametrize("count", [0, 10, 11, 13])
def test_a_printed_result_is_its_outcome_in_short(result, count, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    report = build_report(result)
    tables = [Table("empty", []), Table("net\x1b[2J", [{"format": f"{i}.x"} for i in range(count)])]
    report = replace(report, documents={"table.md": tables}, closing=["saved\x1b[2J.", "more"])
    shown = with_display(report, tmp_path)
    lines = str(shown).splitlines()
    assert str(shown) == repr(shown) == f"{shown}" and "\x1b" not in str(shown)
    assert (
        lines[0] == r"saved\x1b[2J."
        and lines[-1] == f"Page of these results: {tmp_path}/report.html"
    )
    assert sum(".x" in line for line in lines) == min(count, 10) and "empty" not in str(shown)
    assert ("1 more row is on the page." in lines) == (count == 11)
    assert ("3 more rows are on the page." in lines) == (count == 13)
    assert shown == result and json.loads(json.dumps(shown)) == result
    assert str(type(result)(shown)) == str(result)
    assert str(pickle.loads(pickle.dumps(shown))) == str(copy.copy(shown)) == str(shown)
    assert str(type(shown)(result)) == str(result)
