"""README and docs: their Python prints what they say, their links lead somewhere."""

import re
import subprocess

import pytest

from tests import programs
from tests.pages import (
    INDEX,
    OTHERS,
    PAGES,
    README,
    RESULTS,
    ROOT,
    anchors,
    get_name,
    links,
    prose_of,
    python_of,
)

MOST_BYTES = {"README.md": 7_000, "CHANGELOG.md": 7_000, "benchmarks/RESULTS.md": 12_000}
MOST_WORDS = 30
TO_WRITE = {
    "src/chop/formats/int_group.py",
    "src/chop/passes/transforms/replace_activations.py",
    "src/chop/actions/near_zero/settings.py",
    "src/chop/actions/near_zero/job.py",
    "src/chop/cli/near_zero.py",
    "src/chop/export/NAME.py",
    "tests/formats/test_int_group.py",
}
"""Files that a reader of the pages is told to write."""
PREAMBLE = """
import os, warnings
os.chdir({folder!r})
warnings.filterwarnings("error", category=DeprecationWarning, module="__main__")
"""
SIMULATORS = pytest.mark.tools("verilator", "iverilog", "yosys")
NEEDS = {"how-to/add-a-circuit": SIMULATORS, "guide/circuit": SIMULATORS}
NEEDS["guide/circuit-testbench"] = SIMULATORS
PRINTS_MORE = {"evaluate", "how-to/add-a-command", "guide/python", "guide/passes"}
PRINTS_MORE |= {"own-model", "tasks", "guide/export-onnx"}
"""Pages with code that prints tables or measured numbers, too."""
TIMES = "guide/bench"
"""What it prints depends on the machine; `tests/bench/test_docs.py` runs it."""
MADE = {"guide/search-python": "runs/mine/search.db", "guide/python": "bert.svg"}
"""Page -> a file that its code makes."""
WITH_CODE = [
    pytest.param(page, marks=NEEDS.get(get_name(page), ()), id=get_name(page))
    for page in PAGES
    if python_of(page) and get_name(page) != TIMES
]


def labels(svg):
    found = re.findall(r"<text[^>]*>(.*?)</text>", svg)
    return [re.sub(r"\d+", "N", text) for text in found]  # widths follow the trained weights


@pytest.mark.parametrize("page", WITH_CODE)
@pytest.mark.sampled(4)
def test_the_code_of_a_page_runs(page, tmp_path):
    """In a process of its own: formats, passes and operators are registered in it."""
    code, name = python_of(page), get_name(page)
    program = tmp_path / f"{page.stem.replace('-', '_')}.py"
    program.write_text(f"{PREAMBLE.format(folder=str(tmp_path))}{code}")
    done = programs.run(program)
    assert done.returncode == 0, done.stderr
    promised, printed = re.findall(r"print\(.*\)  # (.*)", code), done.stdout.splitlines()
    assert promised or name == "mase"
    kept = [line for line in printed if line in promised] if name in PRINTS_MORE else printed
    assert kept == promised
    assert name not in MADE or (tmp_path / MADE[name]).is_file()
    for drawn in tmp_path.glob("*.svg"):
        shown = ROOT / "docs/images" / drawn.name
        assert not shown.exists() or labels(shown.read_text()) == labels(drawn.read_text())
    for command in re.findall(r"^(?:iverilog|vvp) .*", page.read_text(), re.M):
        done = subprocess.run(
            command, shell=True, cwd=tmp_path / "project", capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not command.startswith("vvp") or done.stdout.splitlines()[-1] == "PASS"


def test_links_lead_to_files_and_headings():
    broken = [
        (get_name(page), str(file), anchor)
        for page in (*PAGES, *OTHERS, *RESULTS)
        for file, anchor in links(page)
        if not file.exists() or (anchor and anchor not in anchors(file))
    ]
    assert broken == []


def test_the_site_shows_every_line():
    """MyST takes a line that begins with a percent sign for a comment."""
    hidden = {get_name(page): re.findall(r"^ *%.*", prose_of(page), re.M) for page in PAGES}
    assert {name: lines for name, lines in hidden.items() if lines} == {}


def test_the_files_that_pages_name_exist():
    paths = re.compile(r"`((?:src|tests|benchmarks|examples)/[\w/]+\.\w+)`")
    named = {path for page in PAGES for path in paths.findall(page.read_text())}
    assert len(named) > 30
    assert {path for path in named if not (ROOT / path).exists()} == TO_WRITE


def test_the_index_has_every_page_with_a_sentence():
    listed = {file for file, _ in links(INDEX)}
    assert [get_name(page) for page in PAGES if page not in {INDEX, *listed}] == []
    entries = re.findall(r"^- \[[^]]+\]\([^)]+\)(.*(?:\n  .*)*)", INDEX.read_text(), re.M)
    assert len(entries) == len(listed) - 1  # the README is named above the lists
    assert all(text.startswith(": ") and text.endswith(".") for text in entries)


def test_the_glossary_has_the_terms_of_the_field_and_pages_link_it():
    glossary = ROOT / "docs/glossary.md"
    rows = re.findall(r"^\| (.*\*\*.*?) \| (.+?) \| (.*) \|$", glossary.read_text(), re.M)
    terms = " ".join(term for term, *_ in rows).lower()
    assert len(rows) >= 60 and all(meaning.endswith(".") for _, meaning, _ in rows)
    for word in ("outlier", "tensor parallelism", "opset", "back-pressure", "calibration", "sqnr"):
        assert word in terms
    assert len([p for p in PAGES if glossary in {file for file, _ in links(p)}]) >= 5


@pytest.mark.parametrize("name", MOST_BYTES)
def test_pages_that_many_read_are_short(name):
    assert len((ROOT / name).read_bytes()) <= MOST_BYTES[name]


def test_the_readme_has_the_two_commands():
    assert all(f"make {target}" in README.read_text() for target in ("demo", "test"))


@pytest.mark.parametrize("page", [README, INDEX], ids=get_name)
def test_sentences_are_short(page):
    text = re.sub(r"^\|.*\n", "", prose_of(page), flags=re.M)  # tables have no sentences
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    parts = re.split(r"(?<=[.!?:])\s|\n\n|\n- ", text)
    assert [part for part in parts if len(part.split()) > MOST_WORDS] == []


def test_the_page_on_trust_has_the_bounds_of_the_readers():
    from chop.base.files import documents
    from chop.hardware.check.testbench import SLOWEST
    from chop.ir.huggingface.config_file import COUNTS
    from chop.ir.storage import graph_codec, module_codec, tensor_store

    text = (ROOT / "docs/trust.md").read_text()
    layers, labels, *_ = COUNTS.values()
    for bound in (
        f"at most {documents.DEEPEST} levels, {documents.MAX_VALUES:,} values",
        f"integers of at most {len(str(documents.LARGEST)) - 1} digits",
        f"unpack to {tensor_store.INLINE_FREE >> 20} MiB, and {tensor_store.INLINE_RATIO} times",
        f"metadata to {graph_codec.METADATA_FREE >> 20} MiB and {graph_codec.METADATA_RATIO} times",
        f"nested {module_codec.MAX_DEPTH} deep",
        f"at most {layers:,} layers and {labels:,} labels",
        f"after {SLOWEST} intervals",
    ):
        assert bound in " ".join(text.split()), bound
