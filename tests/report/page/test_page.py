"""The page of a run: all of it from data, nothing of anybody's runs as a script."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from chop.actions.job import Job, load_nothing, run_job
from chop.config import parse
from chop.errors import CheckpointError, ConfigError
from chop.report.charts.accuracy import Curve, accuracy_charts
from chop.report.charts.chart import (
    Axis,
    Bar,
    BarChart,
    GraphChart,
    GraphNode,
    HeatMap,
    Histogram,
    Histograms,
    LineChart,
    Mark,
    Series,
)
from chop.report.charts.heat_map import heat_map
from chop.report.charts.merge import merged
from chop.report.document import (
    FILE,
    MAX_ROWS,
    Document,
    PageTable,
    build_document,
    page_table,
    read_document,
)
from chop.report.page.files import read_run, write_page
from chop.report.page.page import (
    MAX_FILES,
    MAX_NODES,
    PAGE,
    PageRun,
    get_shades,
    numeric_columns,
    render,
)
from chop.report.page.svg import svg
from chop.report.report import Cell, Heading, Note, Report, Table, Tile, figure_files
from chop.runs import as_json, read_manifest
from chop.runs.manifest import Artifact
from tests.actions.test_job import Settings, failing

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x1b[2J&amp;"
LINES = LineChart(
    "accuracy against bits",
    Axis("bits", whole=True),
    Axis("accuracy", percent=True),
    (
        Series("PTQ", (Mark(4, 0.5, 0.4, 0.6), Mark(8, 0.9)), dashed=True),
        Series("all", (Mark(5, 0.7, text="trial 3"),), "none", faint=True),
        Series("best", (Mark(1, 0.1), Mark(3, 0.9)), "steps"),
    ),
    {"float": 0.95},
    {"budget": 6},
)
BARS = BarChart(
    "memory",
    Axis("MB", log=False),
    (Bar("auto", (1.5, 0.25)), Bar("rows", (1.0, 0.5), 1.4, 1.6, True)),
    ("parameters", "activations"),
    {"budget": 2.0},
)
HEAT = heat_map(
    {("fc1", "4"): 0.1, ("fc2", "4"): 2.0, ("fc2", "8"): math.nan}, title="kl", log=True
)
PANELS = Histograms("weights", (Histogram("fc1", (1, 9, 0), -1, 2, {"8.5": (-1, 0, 1)}),))
GRAPH = GraphChart(
    "Net",
    (
        GraphNode(("x",), "input", brief="1 lane", marks=("slowest",)),
        GraphNode(("net", "fc1"), "product", ("Linear", "(B, 4)"), (0,), quantized=True),
        GraphNode(("net", "act"), "activation", (), (1,), stays_float=True, numbers={"zeros": 0.5}),
    ),
    {"B": "x.shape[0]"},
    {"slowest": "sets the pace"},
)
BEYOND = Series("all", (Mark(-1e308, 1), Mark(1e308, 2)))
"""Farther apart than a float can say."""
CHARTS = (LINES, BARS, HEAT, PANELS, GRAPH)


class Reader(HTMLParser):
    """Tags that are open, `data-value` of cells with their texts, and what a page would fetch."""

    VOID = frozenset({"meta", "br", "img", "input", "link", "hr"})

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.numbers, self.fetched, self.scripts = [], [], [], 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.scripts += tag == "script"
        self.fetched += [
            v for k, v in attributes if k in ("src", "href", "action", "data", "srcset")
        ]
        assert not any(name.startswith("on") for name in found)
        if "data-value" in found:
            self.numbers.append(float(found["data-value"]))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def build_report(text="numbers", count=12345.678):
    table = Table(text, [{"what": text, "count": Cell.of(count, ",.1f")}], shaded=("count",))
    curves = [Curve(text, [(4, 0.5), (8, 0.75)])]
    return Report(
        text,
        {"table.md": [Heading(text), table, Note(text), Note(None)]},
        {},
        [{"count": count}],
        figures=figure_files("accuracy", accuracy_charts, curves, xlabel="bits", title=text),
        verdict=f"{text}: done.",
        warnings=[text],
        tiles=[Tile(text, Cell.of(count, ",.0f"), text)],
        charts=CHARTS,
        tables=[table],
    )


def job_of(report):
    return Job("count", lambda config, workload, output: report, load_nothing)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    run_job(job_of(build_report()), Settings(out))
    return out


def test_a_job_leaves_a_page_that_is_made_again_from_its_folder(folder, tmp_path):
    written = (folder / PAGE).read_text()
    manifest = read_manifest(folder)
    assert {PAGE, FILE} <= {artifact.path for artifact in manifest.artifacts}
    again = write_page([folder], tmp_path / "again.html").read_text()
    assert again == written


def test_every_number_of_a_page_is_of_the_manifest_or_its_charts(folder):
    page = Reader((folder / PAGE).read_text())
    assert page.open == []
    known = {12345.678, 12346.0} | {a.size_bytes for a in read_manifest(folder).artifacts}
    for chart in (*read_document(folder).charts,):
        known |= set(
            map(float, re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", json.dumps(as_json(chart))))
        )
    known.add(10.0)  # the histogram's count of all numbers
    assert page.numbers and set(page.numbers) <= known
    assert page.numbers.count(12345.678) == 3  # tile, table, layers


def test_a_page_asks_for_nothing_and_runs_nothing_of_a_run(tmp_path):
    run_job(job_of(build_report(HOSTILE)), Settings(tmp_path))
    text = (tmp_path / PAGE).read_text()
    page = Reader(text)
    assert page.open == [] and page.fetched == ["#results"]
    assert page.scripts == 2  # the page's own, and the graph's data
    assert "Content-Security-Policy" in text and "default-src 'none'" in text
    assert "\x1b" not in text and "url(" not in text and "@import" not in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_a_graph_cannot_end_its_script():
    node = GraphNode(("a", HOSTILE), HOSTILE, (HOSTILE,))
    document = Document("t", charts=(GraphChart(HOSTILE, (node, node)),))
    text = render([PageRun("r", read_like(), document)])
    page = Reader(text)
    assert page.open == [] and page.scripts == 2
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.S)
    assert json.loads(data[1])["nodes"][0]["path"] == ["a", HOSTILE]


def read_like():
    from chop.runs.manifest import Manifest

    return Manifest("compress", {}, "finished", "p", command=("chop", HOSTILE))


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.kind)
def test_charts_survive_json(chart):
    document = Document("t", charts=(chart,))
    assert parse(Document, json.loads(json.dumps(as_json(document)))) == document


@pytest.mark.parametrize(
    "chart",
    [
        LINES,
        replace(LINES, series=(Series("one", (Mark(3, 0.5),)),)),
        replace(LINES, y=Axis("loss"), series=(Series("a", (Mark(1, 1e-9), Mark(2, 1e9))),)),
        replace(
            LINES, y=Axis("loss"), series=(Series("a", (Mark(1, 0), Mark(2, 1e4))),), levels={}
        ),
        replace(LINES, series=(Series("many", tuple(Mark(i, i / 500) for i in range(500))),)),
        BARS,
        replace(BARS, bars=(Bar("none", (0.0, 0.0)),), limits={}),
        HEAT,
        HeatMap("one", ("r",), ("c",), ((0.5,),), percent=True),
        HeatMap("wide", ("r" * 90,), tuple(map(str, range(60))), (tuple([0.5] * 60),), "x"),
    ],
    ids=str,
)
def test_charts_are_drawn_within_their_frames(chart):
    text = svg(chart)
    assert Reader(text).open == []
    box = [float(x) for x in re.search(r'viewBox="([^"]*)"', text)[1].split()]
    for name, end in (("x", box[2]), ("cx", box[2]), ("y", box[3]), ("cy", box[3])):
        found = [float(x) for x in re.findall(rf' {name}="([^"]*)"', text)]
        assert all(-1 <= x <= end + 1 for x in found), name
    assert "nan" not in text and "inf" not in text
    if isinstance(chart, LineChart):
        assert text.count("<circle") == sum(len(series.marks) for series in chart.series)


def test_marks_are_where_their_numbers_are():
    text = svg(replace(LINES, y=Axis("a", log=False), levels={}, limits={}))
    places = [tuple(map(float, p)) for p in re.findall(r'cx="([^"]*)" cy="([^"]*)"', text)]
    marks = [mark for series in LINES.series for mark in series.marks]
    (x0, y0), (x1, y1) = places[0], places[1]
    for (x, y), mark in zip(places, marks, strict=True):
        assert x == pytest.approx(x0 + (x1 - x0) * (mark.x - 4) / 4, abs=0.2)
        assert y == pytest.approx(y0 + (y1 - y0) * (mark.y - 0.5) / 0.4, abs=0.2)


def test_runs_are_compared_on_the_same_axes(folder, tmp_path):
    other = tmp_path / "other"
    run_job(job_of(build_report("others", 7.5)), Settings(other))
    text = write_page([folder, other], tmp_path / "both.html").read_text()
    page = Reader(text)
    assert page.open == [] and {12345.678, 7.5} <= set(page.numbers)
    assert "Compared" in text and text.count('class="run"') == 2
    both = merged({"a": LINES, "b": LINES})
    assert [each.label for each in both.series][:4] == ["a: PTQ", "a: all", "a: best", "b: PTQ"]
    assert both.levels == {"a: float": 0.95, "b: float": 0.95}
    assert merged({"a": HEAT, "b": HEAT}) is None
    assert merged({"a": BARS, "b": BARS}).limits == {"budget": 2.0}
    other = replace(LINES, title="others", limits={"budget": 7})
    differing = merged({"a": LINES, "b": other})
    assert differing.limits == {"a: budget": 6, "b: budget": 7}
    assert differing.title.splitlines() == [LINES.title, "others"]


def test_the_earlier_page_stays_where_a_job_fails(folder, tmp_path):
    out = tmp_path / "run"
    run_job(job_of(build_report()), Settings(out))
    before = (out / PAGE).read_bytes()
    with pytest.raises(KeyboardInterrupt):
        run_job(Job("count", failing(KeyboardInterrupt()), load_nothing), Settings(out))
    assert (out / PAGE).read_bytes() == before
    assert read_run(out, "run").manifest.state == "finished"


def test_a_page_made_again_tells_of_a_later_run_that_failed(tmp_path):
    out = tmp_path / "run"
    run_job(job_of(build_report()), Settings(out))
    assert "later run" not in (out / PAGE).read_text()
    with pytest.raises(CheckpointError):
        run_job(Job("count", failing(CheckpointError("no")), load_nothing), Settings(out))
    again = write_page([out], tmp_path / "again.html").read_text()
    assert "A later run in this folder is failed. The results are from the run before it." in again
    assert read_run(out, "run").document.tiles == read_document(out).tiles


def test_several_runs_do_not_replace_the_page_of_one(folder, tmp_path):
    other = tmp_path / "other"
    run_job(job_of(build_report()), Settings(other))
    before = (other / PAGE).read_bytes()
    with pytest.raises(ConfigError, match="page of a single run: choose another file"):
        write_page([folder, other], other / PAGE)
    assert (other / PAGE).read_bytes() == before
    assert write_page([folder, other], other / "both.html").is_file()


def test_a_page_that_cannot_be_drawn_costs_no_results(tmp_path, monkeypatch):
    def broken(runs):
        raise ZeroDivisionError("no")

    monkeypatch.setattr("chop.report.page.files.render", broken)
    with pytest.warns(UserWarning, match="could not be rendered .ZeroDivisionError: no."):
        run_job(job_of(build_report()), Settings(tmp_path))
    assert read_manifest(tmp_path).state == "finished" and (tmp_path / "table.md").is_file()


def test_a_document_that_cannot_be_made_costs_no_results(tmp_path):
    rows = [{"a": 1, "b": 2}, {"a": 1}]
    tables = [Table("uneven", rows)]
    with pytest.warns(UserWarning, match="no tables or charts, .*KeyError: 'b'"):
        run_job(job_of(replace(build_report(), tables=tables)), Settings(tmp_path))
    assert read_manifest(tmp_path).state == "finished"
    assert "no tables or charts" in write_page([tmp_path], tmp_path / "x.html").read_text()


def test_truth_values_are_no_numbers(tmp_path):
    tables = [Table("t", [{"fits": True}, {"fits": False}], shaded=("fits",))]
    text = render(
        [PageRun("r", read_like(), build_document(replace(build_report(), tables=tables)))]
    )
    assert 'data-value="True"' not in text and ">yes</td>" in text


def test_a_run_of_an_earlier_version_has_its_rows(folder, tmp_path):
    out = tmp_path / "old"
    run_job(job_of(build_report()), Settings(out))
    (out / FILE).unlink()
    text = write_page([out], tmp_path / "old.html").read_text()
    assert 12345.678 in Reader(text).numbers


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"title": 4}',
        '{"title": "t", "charts": [{"kind": "lines"}]}',
        '{"title": "t", "charts": [{"kind": "pie", "title": "t"}]}',
        '{"format": 9}',
        json.dumps({"title": "t", "tables": [as_json(PageTable("", ("a",), (("1",),), ()))]}),
        json.dumps({"title": "t", "charts": [as_json(replace(BARS, parts=("one",)))]}),
        json.dumps({"title": "t", "charts": [as_json(replace(HEAT, values=((1.0,), (2.0, 3.0))))]}),
        json.dumps({"title": "t", "charts": [as_json(replace(LINES, series=(BEYOND,)))]}),
    ],
)
def test_a_broken_document_is_one_sentence(content, folder, tmp_path):
    out = tmp_path / "broken"
    run_job(job_of(build_report()), Settings(out))
    (out / FILE).write_text(content)
    with pytest.raises(CheckpointError, match=r"report\.json"):
        write_page([out], tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()


def test_a_folder_that_is_there_twice_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match="expected different run folders"):
        write_page([folder, folder / ".." / folder.name], tmp_path / "x.html")


def test_files_that_are_not_listed_are_counted():
    artifacts = tuple(Artifact(f"{i}.pt", i, "0" * 64) for i in range(MAX_FILES + 7))
    text = render([PageRun("r", replace(read_like(), artifacts=artifacts), Document("t"))])
    assert "7 more rows are in the files of the run" in text


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="expected the output folder"):
        write_page([tmp_path], tmp_path / "x.html")


def test_large_runs_stay_below_a_megabyte(tmp_path):
    rows = [{"layer": f"model.layers.{i}.mlp.down_proj", "x": i / 7} for i in range(2 * MAX_ROWS)]
    nodes = [
        GraphNode(("model", "layers", str(i), "fc"), "product", ("Linear",))
        for i in range(MAX_NODES + 9)
    ]
    report = Report(
        "t", {"a.md": [Table("t", rows)]}, {}, [], charts=[GraphChart("G", tuple(nodes))]
    )
    run_job(job_of(report), Settings(tmp_path))
    text = (tmp_path / PAGE).read_text()
    assert len(text.encode()) < 1e6 and f"{MAX_ROWS} more rows" in text


def test_texts_of_a_column_are_sorted_by_their_numbers():
    cells = ["524 µs", "1.37 ms", "-", "2 s"]
    table = page_table(Table("t", [{"latency": cell} for cell in cells]))
    assert [row[0] for row in table.values] == [
        pytest.approx(524e-6),
        pytest.approx(1.37e-3),
        "-",
        2.0,
    ]
    names = page_table(Table("t", [{"layer": "4a"}, {"layer": "fc"}]))
    assert [row[0] for row in names.values] == ["4a", "fc"]
    signs = page_table(Table("t", [{"gain": "-3.5 %"}, {"gain": "+2,000 (1 to 3)"}]))
    assert [row[0] for row in signs.values] == [-3.5, 2000.0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1e-5, 1e-4, None, 1e-3], [0, 4, None, 8]),  # decades apart: by logarithms
        ([0.0, 1e-3, 1.0], [0, 0, 8]),  # zero has none
        ([1.0, 2.0, 3.0], [0, 4, 8]),
        ([1.0, 2.0, 3.0, math.inf], [0, 4, 8, None]),
        ([math.nan, 1.0, 10.0, 100.0], [None, 0, 4, 8]),
        ([-1.0, 0.0, 1.0], [0, 4, 8]),
        ([None, None], [None, None]),
    ],
)
def test_colors_are_of_logarithms_where_numbers_span_decades(values, expected):
    found = page_table(Table("t", [{"x": x} for x in values], shaded=("x",)))
    assert get_shades(found) == {0: expected}


def test_a_column_of_numbers_with_gaps_is_one_of_numbers():
    rows = [{"a": "float", "b": None, "c": "-", "d": 1.0}, {"a": "x", "b": 2, "c": "y", "d": "-"}]
    assert numeric_columns(page_table(Table("t", rows))) == {1, 3}
    assert numeric_columns(page_table(Table("t", []))) == set()
