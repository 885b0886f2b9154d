"""A browser without a screen: what scripts say on pages, and what axe-core finds there."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

BROWSER = "chromium"
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-first-run",
    "--enable-logging=stderr",
    "--virtual-time-budget=20000",
    "--dump-dom",
]
TELL = (
    "const told = (value) => { const made = document.createElement('pre'); made.id = 'told';"
    "made.textContent = JSON.stringify(value); document.body.append(made); };"
)
VISIT = (Path(__file__).parent / "site" / "visit.js").read_text()
WIDTHS = (400, 1280)
SECONDS = 600
needs_browser = pytest.mark.skipif(
    shutil.which(BROWSER) is None, reason=f"needs {BROWSER}: apt-get install {BROWSER}"
)


def opened(text: str, script: str, folder: Path, width: int = 1280) -> Any:
    """What a script of the page's own says after loading: it calls `told` with a value."""
    file = folder / "page.html"
    file.write_text(_with_script(text, script))
    return _told_by(file.as_uri(), folder, f"--window-size={width},1400")


def opened_file(page: Path, script: str, folder: Path, query: str = "") -> Any:
    """The same of a page that needs the files beside it."""
    told = page.with_name(f"told-{page.name}")
    told.write_text(_with_script(page.read_text(), script))
    # A page may look into its frames, and has time until all of them have loaded.
    options = ["--allow-file-access-from-files", f"--virtual-time-budget={SECONDS * 10**4}"]
    found = _told_by(f"{told.as_uri()}{query}", folder, *options, "--window-size=1300,1500")
    told.unlink()
    return found


def visited(folder: Path, pages: Iterable[str], check: str, tmp_path: Path) -> Any:
    """What a check of `visit.js` says of pages, in each width, by one browser."""
    visitor = folder / "visitor.html"
    visitor.write_text("<!doctype html><body></body>")
    call = f"visit({json.dumps(list(pages))}, {json.dumps(WIDTHS)}, {check}).then(told);"
    found = opened_file(visitor, VISIT + call, tmp_path)
    visitor.unlink()
    return found


def _with_script(text: str, script: str) -> str:
    return text.replace("</body>", f"<script>{TELL}{script}</script></body>")


def _told_by(url: str, folder: Path, *options: str) -> Any:
    """What a page says, with nothing in the console and nothing fetched."""
    net = folder / "net.json"
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [BROWSER, *QUIET, profile, f"--log-net-log={net}", *options, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    urls = set(re.findall(r'"url":"([^"]+)"', net.read_text()))
    ours = {url for url in urls if not re.search(r"google|gvt1|chrome", url)}
    assert all(url.startswith(("file://", "data:")) for url in ours), ours
    found = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1]))


def axe_core() -> Path:
    """The script of Deque's axe-core: contrasts, names, roles, order of headings."""
    package = pytest.importorskip("axe_core_python", reason="needs axe-core-python")
    return Path(package.__file__).parent / "axe.min.js"


def axe_text() -> str:
    """The same to stand in a script of a page."""
    return axe_core().read_text().replace("</script", "<\\/script")


def axe_findings(text: str, folder: Path, theme: str, width: int) -> tuple[int, list[list[str]]]:
    """How wide the page is, and the serious findings of axe-core."""
    script = (
        f"{axe_text()};document.documentElement.dataset.theme = '{theme}';"
        "document.querySelectorAll('details').forEach((each) => { each.open = true; });"
        "axe.run(document, {resultTypes: ['violations']}).then((found) => told(["
        "document.documentElement.scrollWidth, "
        "...found.violations.map((each) => [each.id, each.impact, each.nodes[0].html])]));"
    )
    taken, *found = opened(text, script, folder, width)
    return taken, [each for each in found if each[1] in ("serious", "critical")]
