"""The pages that jobs leave, in a browser: one of each kind, as the commands make them."""

import shlex

import pytest

from chop.report.page.page import PAGE
from chop.runs import read_manifest
from tests.browsing import axe_text, needs_browser, visited
from tests.programs import chop

MEGABYTE = 2**20
FEW = "--limit 60 --keep-best --bench-seconds 0"
COMMANDS = {
    "compress": f"compress --model vit --formats 8.auto,4.auto --qat-epochs 0 {FEW}",
    "language-model": f"compress --model gpt-tiny --max-length 64 --samples 2 {FEW} --qat-epochs 0 "
    "--formats mxint:width=4",
    "evaluate": "evaluate {runs}/language-model --limit 20",
    "lower": "lower --model mlp",
    "sweep-quantize": "sweep quantize --model mlp --limit 100 --qat-epochs 1 --widths 4,8",
    "sweep-prune": "sweep prune --model mlp --limit 100 --sparsity 0.5,0.9",
    "search-precision": "search precision --model mlp --limit 100 --trials 6",
    "search-nas": "search nas --limit 100 --trials 2",
    "bench-model": "bench model --model mlp --batch 4 --seconds 0.02 --no-compile",
    "bench-linear": "bench linear --quick",
    "emit": "emit --model mlp --samples 4 --icarus-samples 0 --no-synthesis",
    "shard": "shard --model mlp --mesh 2",
    "export": "export {runs}/compress --to onnx --seconds 0.02",
}
"""Name of a page -> the command that leaves it, without its folder."""

pytestmark = [needs_browser, pytest.mark.slow, pytest.mark.long]


def page_of(out):
    """A search has a folder of its name in `out`."""
    (page,) = out.rglob(PAGE)
    return page


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A folder of the pages, each with axe-core in it: their policy lets no other file in."""
    axe = axe_text()
    runs, folder = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("pages")
    for name, command in COMMANDS.items():
        chop("-q", *shlex.split(command.format(runs=runs)), "--out", runs / name)
        text = page_of(runs / name).read_text()
        (folder / f"{name}.html").write_text(
            text.replace("</body>", f"<script>{axe}</script></body>")
        )
    return runs, folder


@pytest.mark.parametrize("check", ["axe", "layout"])
def test_pages_of_jobs_ask_no_network_and_shut_nobody_out(check, pages, tmp_path):
    _, folder = pages
    assert visited(folder, [f"{name}.html" for name in COMMANDS], check, tmp_path) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_pages_of_jobs_are_small_and_their_own(name, pages):
    runs, _ = pages
    page = page_of(runs / name)
    manifest = read_manifest(page.parent)
    assert page.stat().st_size < MEGABYTE
    assert manifest.state == "finished" and PAGE in {each.path for each in manifest.artifacts}
