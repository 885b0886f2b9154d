"""The built site in a browser from files: it searches, asks no network, and shuts nobody out."""

import importlib.util
import re
import shutil
import subprocess
import sys

import pytest

from tests.browsing import WIDTHS, axe_core, needs_browser, opened_file, visited
from tests.pages import ROOT

STYLE = ROOT / "docs/site/static/site.css"
FOR_AXE = (
    *("index.html", "docs/course/lab-1.html", "docs/course/notebooks/lab_1.html"),
    *("docs/reference/commands/compress.html", "docs/own-model.html", "docs/guide/sweep.html"),
)
"""One page of each kind: the rest of a page is that of all."""
needs_sphinx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("sphinx", "myst_parser", "furo"))),
    reason="needs Sphinx, MyST and furo: pip install 'mase-chop[docs]'",
)
pytestmark = needs_browser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "docs.site", "--no-runs", "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.long
@needs_sphinx
def test_the_search_finds_a_word_from_files(site, tmp_path):
    script = (
        "setTimeout(() => told([...document.querySelectorAll('#search-results li a')]"
        ".map((each) => each.getAttribute('href'))), 5000);"
    )
    found = opened_file(site / "search.html", script, tmp_path, "?q=perplexity")
    assert any("language-models.html" in link for link in found)


@pytest.mark.slow
@pytest.mark.long
@needs_sphinx
def test_every_page_fits_a_phone_and_has_its_figures(site, tmp_path):
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    assert len(pages) > 150
    assert visited(site, pages, "layout", tmp_path) == []


@pytest.mark.slow
@pytest.mark.long
@needs_sphinx
def test_no_serious_finding_of_axe(site, tmp_path):
    shutil.copyfile(axe_core(), site / "axe.js")
    found = visited(site, FOR_AXE, "axe", tmp_path)
    (site / "axe.js").unlink()
    assert found == []


@pytest.mark.long
def test_a_visitor_tells_what_is_wide_missing_or_broken(tmp_path):
    """With the site's style a wide table scrolls itself, and words break at no dash."""
    word = "<code><span class='pre{}'>{}</span></code>"
    row = "<td>1234567890123456789012345678901234567890</td>" * 3
    shown = (
        f"<article><table style='width: 100%'><tr>{row}</tr></table><p style='width: 4em'>aaaa"
        f"{word.format('', '--max-length')} {word.format(' long', 'long_' * 30)}</p></article>"
    )
    for name, style in (("ours", STYLE.read_text()), ("none", "")):
        (tmp_path / f"{name}.html").write_text(
            f"<!doctype html><style>{style}</style>{shown}<img src='gone.svg'>"
        )
    found = visited(tmp_path, ["ours.html", "none.html"], "layout", tmp_path)
    found = [re.sub(r"\d{4} pixels wide", "wide", each) for each in found]
    gone = '<img src="gone.svg">'
    broken = '<span class="pre">--max-length</span>'
    assert found == [
        *(f"ours.html, {width} pixels: {gone}" for width in WIDTHS),
        *(f"none.html, 400 pixels: {each}" for each in ("wide", gone, broken)),
        *(f"none.html, 1280 pixels: {each}" for each in (gone, broken)),
    ]
