"""The page on the files of a run against what the jobs of this folder's tests write.

`conftest.py` holds every run of these tests against the table; here the rows are held against
the sources, so that none is of a file that nothing writes.
"""

import re
from pathlib import Path

import pytest

import chop
from chop import runs
from tests.run_files import ANY, file_rows, recorded

SOURCES = "\n".join(p.read_text() for p in Path(chop.__file__).parent.rglob("*.py"))
NAMES = [name for row in file_rows() for name in row.patterns]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_one_that_chop_writes(name):
    parts = [part for part in re.split(r"\*|[/.]", ANY.sub("*", name)) if part]
    assert parts and all(re.search(rf"\b{re.escape(part.strip('-'))}\b", SOURCES) for part in parts)


@pytest.mark.parametrize(
    ("kind", "path", "expected"),
    [
        ("compress", "model/config.json", True),
        ("compress", "table.csv", False),
        ("compress", "golden.safetensors", False),
        ("search precision", "best/12ab/model.pt", True),
        ("search precision", "model.gguf", False),
        ("searching", "best.json", False),
        ("bench generate", "decode.json", True),
        ("anything", "report.html", True),
        ("anything", "deep/report.html", False),
        ("sweep prune", "start-12ab.pt", True),
    ],
)
def test_a_row_is_of_its_commands_and_of_whole_folders(kind, path, expected):
    assert any(row.has(kind, path) for row in file_rows()) is expected


def test_what_a_finished_run_has_written_is_seen(tmp_path):
    with recorded() as seen, runs.start("odd", {}, tmp_path) as run, run.results() as folder:
        (folder / "odd.bin").touch()
    assert seen == [("odd", "odd.bin")]
