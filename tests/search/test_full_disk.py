"""A disk that fills up while trials are written, and a study that cannot even be begun."""

import json
import sys

import pytest

from chop.search import Choice, Goal, Search, SearchSpace
from chop.search.storage import open_engine
from tests.unprivileged import in_a_namespace

SPACE = SearchSpace(tuple(Choice(f"c{i}", {"1": 1, "2": 2, "3": 3}) for i in range(5)))
UNTIL = 200

SCRIPT = """
import json, sys
from pathlib import Path
from chop.errors import WriteError
from tests.search.test_full_disk import UNTIL, make

disk, fill = Path(sys.argv[1]), Path(sys.argv[1]) / "fill"
begun = []
search = make(disk, begun)
try:
    search.run(until=UNTIL, progress=False)
    told = "nothing"
except WriteError as error:
    told = str(error)
finished = [[t.number, t.config, t.values] for t in make(disk, []).result().measured]
fill.unlink()
after = make(disk, begun).run(until=UNTIL, progress=False)
kept = [[t.number, t.config, t.values] for t in after.measured[: len(finished)]]
print(json.dumps([told, len(finished), kept == finished, len(after.measured), len(begun)]))
"""


def make(folder, begun):
    def measure(config, report):
        begun.append(config)
        return {"score": float(sum(SPACE.values(config).values()))}

    return Search(SPACE, measure, Goal("score"), sampler="grid", out=folder)


@pytest.mark.long
def test_a_disk_that_fills_up_is_one_sentence_and_nothing_is_lost(tmp_path):
    # The log of SQLite grows; what is left of the disk takes some of the trials.
    script = """mkdir "$1/disk"; mount -t tmpfs -o size=8m none "$1/disk"
        dd if=/dev/zero of="$1/disk/fill" bs=1k count=7800 2>/dev/null
        "$2" -c "$3" "$1/disk" """
    told, finished, same, measured, begun = json.loads(
        in_a_namespace(script, tmp_path, sys.executable, SCRIPT)
    )
    assert "cannot be written: database or disk is full; free some space" in told
    assert "Finished trials are safe" in told and "\n" not in told
    assert 0 < finished < UNTIL and same
    assert measured == UNTIL and begun <= UNTIL + 1


@pytest.mark.long
def test_a_disk_that_is_full_before_the_study_is_begun(tmp_path, monkeypatch):
    open_engine(f"sqlite:///{tmp_path}/search.db").dispose()
    script = """mount -t tmpfs -o size=40k none "$1"; cp "$2" "$1/search.db"
        dd if=/dev/zero of="$1/fill" bs=1k 2>/dev/null || true
        "$3" -c "$4" "$1" """
    code = (
        "import sys; from tests.search.test_full_disk import make\n"
        "try: make(sys.argv[1], []).run(until=3, progress=False)\n"
        "except OSError as error: print(type(error).__name__, error)"
    )
    (tmp_path / "disk").mkdir()
    told = in_a_namespace(script, tmp_path / "disk", tmp_path / "search.db", sys.executable, code)
    assert told.startswith("WriteError storage") and told.count("\n") == 1
    assert "cannot be written" in told and "are safe" not in told
