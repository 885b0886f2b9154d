"""The built site in a browser from files: it searches, asks no network, and shuts nobody out."""

import html
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT
from tests.report.page.test_browser import BROWSER, QUIET

TELL = (
    "const told = (value) => { const made = document.createElement('pre'); made.id = 'told';"
    "made.textContent = JSON.stringify(value); document.body.append(made); };"
)
VISIT = (Path(__file__).parent / "visit.js").read_text()
STYLE = ROOT / "docs/site/static/site.css"
WIDTHS = (400, 1280)
FOR_AXE = (
    *("index.html", "docs/course/lab-1.html", "docs/course/notebooks/lab_1.html"),
    *("docs/reference/commands/compress.html", "docs/own-model.html", "docs/guide/sweep.html"),
)
"""One page of each kind: the rest of a page is that of all."""
SECONDS = 600
needs_browser = pytest.mark.skipif(
    shutil.which(BROWSER) is None, reason=f"needs {BROWSER}: apt-get install {BROWSER}"
)
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


def opened(page, script, folder, query=""):
    """What a script of the page's own says after loading, with nothing in the console."""
    told = page.with_name(f"told-{page.name}")
    told.write_text(page.read_text().replace("</body>", f"<script>{TELL}{script}</script></body>"))
    net = folder / "net.json"
    options = [*QUIET, f"--user-data-dir={folder / 'profile'}", f"--log-net-log={net}"]
    # A page may look into its frames, and has time until all of them have loaded.
    options += ["--allow-file-access-from-files", f"--virtual-time-budget={SECONDS * 10**4}"]
    done = subprocess.run(
        [BROWSER, *options, "--window-size=1300,1500", f"{told.as_uri()}{query}"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    told.unlink()
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    urls = set(re.findall(r'"url":"([^"]+)"', net.read_text()))
    ours = {url for url in urls if not re.search(r"google|gvt1|chrome", url)}
    assert all(url.startswith(("file://", "data:")) for url in ours), ours
    found = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1]))


def visited(folder, pages, check, tmp_path):
    """What a check of `visit.js` says of pages, in each width, by one browser."""
    visitor = folder / "visitor.html"
    visitor.write_text("<!doctype html><body></body>")
    call = f"visit({json.dumps(list(pages))}, {json.dumps(WIDTHS)}, {check}).then(told);"
    found = opened(visitor, VISIT + call, tmp_path)
    visitor.unlink()
    return found


@pytest.mark.slow
@pytest.mark.long
@needs_sphinx
def test_the_search_finds_a_word_from_files(site, tmp_path):
    script = (
        "setTimeout(() => told([...document.querySelectorAll('#search-results li a')]"
        ".map((each) => each.getAttribute('href'))), 5000);"
    )
    found = opened(site / "search.html", script, tmp_path, "?q=perplexity")
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
    axe_core = pytest.importorskip("axe_core_python", reason="needs axe-core-python")
    shutil.copyfile(Path(axe_core.__file__).parent / "axe.min.js", site / "axe.js")
    found = visited(site, FOR_AXE, "axe", tmp_path)
    (site / "axe.js").unlink()
    assert found == []


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
