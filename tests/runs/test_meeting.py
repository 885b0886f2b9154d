"""Two runs into one folder: each is told of the other."""

import dataclasses
import os
import subprocess

import pytest

from chop import runs
from chop.base.files import write_json
from chop.runs import MANIFEST, read_manifest
from chop.runs.process import process_id
from chop.runs.serialization import as_json


@pytest.fixture
def other():
    """A process that runs."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process_id(process.pid)
        process.kill()


def takes_over(folder, process, state="running"):
    """Another process has written its manifest into the folder."""
    own = read_manifest(folder)
    noted = dataclasses.replace(own, kind="sweep prune", process=process, state=state)
    write_json(folder / MANIFEST, as_json(noted))


def begun(folder, process, state):
    with runs.start("compress", {}, folder):
        pass
    takes_over(folder, process, state)


def test_who_begins_second_is_told(other, tmp_path):
    begun(tmp_path, other, "running")
    told = r"chop sweep prune \(process \d+, since .*\) is writing to the same folder"
    with pytest.warns(UserWarning, match=told), runs.start("compress", {}, tmp_path):
        pass


@pytest.mark.parametrize("way", ["results", "rows"])
def test_who_began_first_is_told_at_the_end(way, other, tmp_path):
    told = r"chop sweep prune \(process .* started here during this run.* separate --out"
    with pytest.warns(UserWarning, match=told), runs.start("compress", {}, tmp_path) as run:
        takes_over(tmp_path, other)
        if way == "results":
            with run.results() as folder:
                (folder / "table.md").write_text("mine")
    assert (tmp_path / "table.md").exists() == (way == "results")


@pytest.mark.parametrize("case", ["finished", "gone", "elsewhere", "own"])
def test_runs_that_are_over_or_ones_own_are_no_others(case, other, tmp_path):
    system, _, since = other.rsplit(":", 2)
    process = {
        "finished": other,
        "gone": f"{system}:{2**22 - 1}:{since}",
        "elsewhere": f"other:{os.getpid()}:{since}",
        "own": process_id(),
    }[case]
    begun(tmp_path, process, "finished" if case == "finished" else "running")
    with runs.start("sweep prune", {}, tmp_path):  # warnings are errors
        pass
