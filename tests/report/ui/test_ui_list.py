"""The list of `chop ui`: numbers of runs, side by side, and command lines to be copied."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'mase-chop[ui]'")
pytest.importorskip("starlette", reason="needs starlette: pip install 'mase-chop[ui]'")

from chop import runs
from chop.base.files.reading import BOUNDS
from chop.report.command_line import command_line
from chop.report.ui.cells import list_cells
from chop.report.ui.folder import RunsFolder
from chop.report.ui.run_entry import RunEntry
from chop.runs import MANIFEST, Outcome, read_manifest
from tests.actions.test_job import Settings
from tests.browsing import axe_findings, needs_browser, opened
from tests.report.page.test_page import HOSTILE, Reader, build_report, job_of, run_job
from tests.report.ui.serving import serving

SMALL = Outcome("digits", "accuracy", 0.9667, 0.9694, True, 4.0, 5000)
LARGE = Outcome("digits", "accuracy", 0.9722, 0.9694, True, 8.0, 9000)


def run_of(folder, outcome, count=12345):
    run_job(job_of(replace(build_report(), outcome=outcome)), Settings(folder, count))


def change(folder, **values):
    file = folder / MANIFEST
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.fixture(name="root")
def _root(tmp_path):
    root = tmp_path / "runs"
    run_of(root / "small", SMALL)
    run_of(root / "large", LARGE, count=7)
    run_of(root / "plain", None)
    return root


@pytest.fixture(name="ask")
def _ask(root):
    with serving(root) as asked:
        yield asked


def get_rows(text):
    """Texts of the cells of each row, by the run's path and the column."""
    found = {}
    for row in re.findall(r'<tr role="row" data-run="(.*?)">(.*?)</tr>', text, re.S):
        cells = re.findall(r'data-label="([^"]*)"[^>]*>(.*?)</td>', row[1], re.S)
        found[row[0]] = {name: re.sub("<.*?>", " ", cell).strip() for name, cell in cells}
    return found


def test_the_list_has_the_numbers_of_each_run(ask):
    rows = get_rows(ask("/")[1])
    assert rows["small"] | {"result": "accuracy 96.67 %", "float": "96.94 %"} == rows["small"]
    assert (rows["small"]["bits"], rows["small"]["size"]) == ("4.00", "5.0 kB")
    assert rows["small"]["data"] == "digits" and rows["small"]["state"] == "finished"
    assert rows["small"]["duration"].endswith(" s")
    assert [rows["plain"][n] for n in ("result", "float", "bits", "size")] == [""] * 4


@pytest.mark.long
def test_results_of_an_earlier_chop_have_no_numbers(root, ask):
    manifest = json.loads((root / "small" / MANIFEST).read_text())
    del manifest["outcome"]
    (root / "small" / MANIFEST).write_text(json.dumps(manifest))
    assert read_manifest(root / "small").outcome is None
    assert get_rows(ask("/")[1])["small"]["result"] == ""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "outcome",
    [
        {"metric": HOSTILE, "value": 1e300, "size_bytes": 10**900, "data": HOSTILE * 9},
        {"metric": "x", "value": -5.0, "bits": -0.0, "size_bytes": -3},
        {"value": "0.5"},
        {"other": 1},
        [],
        None,
    ],
    ids=["huge", "negative", "text", "unknown", "list", "none"],
)
def test_hostile_numbers_are_text_or_nothing(outcome, root, ask):
    change(root / "small", outcome=outcome, command=["chop", HOSTILE, "a\nrm -rf ~"])
    status, text = ask("/")
    plain = Reader(text)
    assert status == 200 and plain.open == [] and plain.scripts == 1 and "<img" not in text
    assert "large" in get_rows(text) and "\nrm" not in text
    status, text = ask("/compare?run=small&run=large")
    assert (
        status == 200 and Reader(text).open == [] and "<img" not in text and "<script" not in text
    )


@pytest.mark.parametrize(
    "times", [("", ""), ("x", "y"), ("2026-01-01", "2026-01-02"), ("9" * 99,) * 2]
)
def test_times_that_are_none_have_no_duration(times):
    run = RunEntry("a", "compress", "finished", started=times[0], ended=times[1])
    assert {cell.column: cell.text for cell in list_cells(run)}["duration"] == ""


def test_a_run_that_goes_on_has_its_time_so_far():
    run = RunEntry("a", "compress", "running", started="2026-01-01T00:00:00+00:00")
    now = datetime(2026, 1, 1, 2, 3, 4, tzinfo=UTC)
    assert {cell.column: cell.text for cell in list_cells(run, now)}["duration"] == "2 h 3 min"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("search precision", {"model": "mlp"}, "chop search resume {root}/stopped"),
        ("search nas", {"storage": "sqlite:///x.db"}, "chop sweep --out 'a b'"),
        ("sweep quantize", {}, "chop sweep --out 'a b'"),
    ],
)
def test_an_interrupted_run_says_how_it_goes_on(kind, settings, expected, root, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/venv/bin/chop", "sweep", "--out", "a b"])
    with pytest.raises(KeyboardInterrupt), runs.start(kind, settings, root / "stopped"):
        raise KeyboardInterrupt
    found = RunsFolder(root).run("stopped")
    assert found.state == "interrupted" and found.error == ""
    assert found.again == expected.format(root=root) and found.goes_on
    assert found.command == "chop sweep --out 'a b'"
    assert RunsFolder(root).run("small").again == ""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["/x/chop", "demo"], "chop demo"),
        (["ch", "a b"], "chop 'a b'"),
        (["/src/chop/cli/__main__.py", "ui"], "chop ui"),
        (["/src/chop/__main__.py", "ui"], "chop ui"),
        (["my run.py", "1"], "python 'my run.py' 1"),
        (["/usr/bin/pytest", "-x"], "/usr/bin/pytest -x"),
        (["chop", "a\nrm -rf /"], r"chop 'a\nrm -rf /'"),
        (["chop", "$(rm)"], "chop '$(rm)'"),
        (["/k/ipykernel_launcher.py", "-f"], ""),
        (["-c"], ""),
        ([""], ""),
        ([], ""),
    ],
    ids=str,
)
def test_command_lines_can_be_pasted(command, expected):
    assert command_line(command) == expected


def test_two_runs_side_by_side(ask):
    status, text = ask("/compare?run=small&run=large")
    assert status == 200 and Reader(text).open == [] and Reader(text).scripts == 0
    assert "+0.55 points" in text and "2 times" in text and "1.8 times" in text
    assert re.search(r"count</th><td>12345</td><td>7</td>", text)
    assert text.count("<svg") >= 1 and "Charts on the same axes" in text
    assert 'href="/run/small"' in text


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "query",
    [
        "",
        "run=small",
        "run=small&run=small",
        "run=small&run=nothing",
        "run=small&run=../../etc",
        "run=small&run=%2Fetc",
        "run=small&run=a%00b",
        "x=1",
    ],
)
def test_what_cannot_be_compared_is_not_found(query, ask):
    assert ask(f"/compare?{query}")[0] == 404


@pytest.mark.long
def test_files_of_compared_runs_are_read_within_bounds(root, ask, tmp_path, monkeypatch):
    (tmp_path / "secret").write_text('{"title": "secret"}')
    for make in (
        lambda file: file.symlink_to(tmp_path / "secret"),
        lambda file: file.write_text("{half"),
        lambda file: file.write_text(json.dumps({"title": 1})),
        lambda file: file.write_text("x" * 101),
    ):
        file = root / "small" / "report.json"
        file.unlink()
        make(file)
        monkeypatch.setitem(BOUNDS, "report", 100)
        status, text = ask("/compare?run=small&run=large")
        assert status == 200 and "secret" not in text and "small: " in text
    outside = tmp_path / "outside"
    run_of(outside, SMALL)
    (root / "link").symlink_to(outside)
    assert ask("/compare?run=small&run=link")[0] == 404


STUB = "const answers = []; window.fetch = async () => ({json: async () => answers[0]});"
USE = """
const names = () => [...rows.rows].map((row) => row.dataset.run);
const head = (name) => heads.find((each) => each.textContent === name).querySelector("button");
const box = (name) => [...rows.rows].find((row) => row.dataset.run === name).querySelector("input");
const orders = [];
for (const name of ["bits", "bits", "result"]) { head(name).click(); orders.push(names()); }
const was = button.disabled;
box("small").click(); const one = button.disabled; box("large").click();
const text = statusText.textContent;
box("large").focus();
answers.push({html: displayed.replaceAll("4.00", "3.00"), counts: "4 finished"});
(async () => {
  await refresh();
  const kept = [names(), box("small").checked, document.activeElement === box("large")];
  [...rows.rows].find((row) => row.dataset.run === "small").querySelector("button").click();
  await new Promise((done) => setTimeout(done, 50));
  find.value = "plain"; find.dispatchEvent(new Event("input"));
  const visible = [...rows.rows].filter((row) => !row.hidden).map((row) => row.dataset.run);
  told({orders, was, one, text, kept, said: statusText.textContent, visible,
        there: document.getElementById("counts").textContent,
        bits: rows.textContent.includes("3.00")});
})();
"""


@needs_browser
def test_the_list_sorts_ticks_copies_and_advances(ask, tmp_path, root):
    change(root / "small", command=["chop", "compress", "--out", "a b"])
    text = ask("/")[1].replace("<script", f"<script>{STUB}</script><script", 1)
    told = opened(text, USE, tmp_path)
    rising, falling, results = told["orders"]
    # A run without a number is last in both directions.
    assert rising == ["small", "large", "plain"] and falling == ["large", "small", "plain"]
    assert results == ["small", "large", "plain"]
    assert told["was"] and told["one"] and told["text"] == "2 runs selected."
    assert told["kept"] == [results, True, True]
    assert told["there"] == "4 finished" and told["bits"]
    assert told["said"] == "Copied: chop compress --out 'a b'"
    assert told["visible"] == ["plain"]


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.long
def test_no_serious_finding_of_axe(theme, width, ask, tmp_path):
    for path in ("/", "/compare?run=small&run=large"):
        text = ask(path)[1].replace("<script", f"<script>{STUB}</script><script", 1)
        taken, found = axe_findings(text, tmp_path, theme, width)
        assert found == []
        assert taken <= max(width, 500)  # the narrowest window of a browser without a screen
