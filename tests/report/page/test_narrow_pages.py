"""Pages and the list of runs in frames of 400 and 1280 pixels, light and dark.

A window of a browser without a screen is at least 500 pixels wide; a frame may be narrower.
"""

import shutil
from dataclasses import replace

import pytest

pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'mase-chop[ui]'")
pytest.importorskip("starlette", reason="needs starlette: pip install 'mase-chop[ui]'")

from chop import runs
from chop.report.document import build_document
from chop.report.page.page import PageRun, render
from chop.report.report import Cell, Step, Table, Tile
from chop.runs import MANIFEST, Outcome
from tests.browsing import axe_core, needs_browser, visited
from tests.report.page.test_page import build_report, read_like
from tests.report.ui.serving import serving
from tests.report.ui.test_ui_list import SMALL, change, run_of

pytestmark = needs_browser
LONG = "model.layers.10.self_attention.query_key_value_projection"
WIDE = {f"a long heading {n}": Cell(n, f"{n},000.00 (1 to 2)") for n in range(12)}


def full_page():
    """A page with all its parts: long names, many columns, steps, assumptions."""
    rows = [{"layer": "patch_" * 12, "format": "integer 4.6", "text": "words " * 30, **WIDE}] * 3
    report = replace(
        build_report("one"),
        tables=[Table("Layers", rows, shaded=("a long heading 1",))],
        tiles=[Tile("KL divergence", Cell(1, "0.008409 (0.00673 to 0.0107)"), "mean")],
        assumptions=["Model: vit (built in)."],
        steps=[Step("Load it", f"model = load('/a/long/path/{LONG}')")],
    )
    return render([PageRun("one", read_like(), build_document(report))])


def listed_pages(root):
    """The pages of `chop ui`: the list, two runs side by side, an interrupted and a failed run."""
    run_of(root / "small", SMALL)
    run_of(root / LONG, Outcome(LONG, "accuracy", 1.0, 1.0, True, 4.0, 5000))
    with runs.start("sweep quantize", {"model": LONG}, root / "stopped"):
        journal = runs.Journal(root / "stopped" / "points.jsonl")
        for width in range(3):
            journal.add({"format": [width, 1], "rows": "f" * 16}, {"accuracy": width / 64})
    command = ["chop", "sweep", "quantize", "--out", f"/{LONG}/stopped"]
    change(root / "stopped", state="interrupted", command=command)
    run_of(root / "failed", None)
    change(root / "failed", state="failed", error=f"ConfigError: {LONG * 3} has no such layer.")
    (root / "failed" / "report.html").unlink()
    (root / "broken").mkdir()
    (root / "broken" / MANIFEST).write_text("{")
    with serving(root) as ask:
        return {
            "list": ask("/")[1],
            "side-by-side": ask(f"/compare?run=small&run={LONG}")[1],
            "stopped": ask("/run/stopped")[1],
            "failed": ask("/run/failed")[1],
            "missing": ask("/run/nothing")[1],
        }


@pytest.fixture(name="pages", scope="module")
def _pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    found = {"page": full_page(), **listed_pages(tmp_path_factory.mktemp("runs"))}
    for name, text in found.items():
        (folder / f"{name}.html").write_text(text.replace("http-equiv=", "data-was="))
    return folder, [f"{name}.html" for name in found]


def test_no_page_is_wider_than_a_telephone(pages, tmp_path):
    folder, names = pages
    assert visited(folder, names, "layout", tmp_path) == []


def test_an_interrupted_run_says_how_it_goes_on(pages):
    text = (pages[0] / "stopped.html").read_text()
    assert "Resume the run with:" in text and "chop sweep quantize" in text
    assert "<td>2, 1</td>" in text and "f" * 16 not in text and "UTC" in text


@pytest.mark.long
def test_no_serious_finding_of_axe(pages, tmp_path):
    folder, names = pages
    shutil.copyfile(axe_core(), folder / "axe.js")
    assert visited(folder, names, "axe", tmp_path) == []
