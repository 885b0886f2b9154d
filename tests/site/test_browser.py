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
from tests.report.test_browser import BROWSER, QUIET

TELL = (
    "const told = (value) => { const made = document.createElement('pre'); made.id = 'told';"
    "made.textContent = JSON.stringify(value); document.body.append(made); };"
)
PAGES = (
    *("index.html", "docs/course/lab-1.html", "docs/course/notebooks/lab_1.html"),
    "docs/reference/commands/compress.html",
)
AXE = (
    "document.body.dataset.theme = '{theme}';"
    "axe.run(document, {{resultTypes: ['violations']}}).then((found) => told("
    "found.violations.map((each) => [each.id, each.impact, each.nodes[0].html])));"
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which(BROWSER) is None, reason=f"needs {BROWSER}: apt-get install {BROWSER}"
    ),
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("sphinx", "myst_parser", "furo"))),
        reason="needs Sphinx, MyST and furo: pip install 'mase-chop[docs]'",
    ),
]


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
    done = subprocess.run(
        [BROWSER, *options, "--window-size=1280,1400", f"{told.as_uri()}{query}"],
        capture_output=True,
        text=True,
        timeout=120,
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


def test_the_search_finds_a_word_from_files(site, tmp_path):
    script = (
        "setTimeout(() => told([...document.querySelectorAll('#search-results li a')]"
        ".map((each) => each.getAttribute('href'))), 5000);"
    )
    found = opened(site / "search.html", script, tmp_path, "?q=perplexity")
    assert any("language-models.html" in link for link in found)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_no_serious_finding_of_axe(page, theme, site, tmp_path):
    axe_core = pytest.importorskip("axe_core_python", reason="needs axe-core-python")
    axe = (Path(axe_core.__file__).parent / "axe.min.js").read_text()
    script = f"{axe.replace('</script', '<' + chr(92) + '/script')};{AXE.format(theme=theme)}"
    found = opened(site / page, script, tmp_path)
    assert [each for each in found if each[1] in ("serious", "critical")] == []
