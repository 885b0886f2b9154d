import json
import multiprocessing
import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from chop.base.files import documents, reading, writers
from chop.errors import CheckpointError, WriteError
from chop.runs import Journal, compute_key, has_numbers, start
from tests.unprivileged import NEEDS_ROOT, as_nobody, in_a_namespace

FORK = multiprocessing.get_context("fork")
POINTS = 100


def settings(number):
    return {"width": number, "rounding": {"mode": "nearest", "axes": [0, 1]}}


def test_a_result_is_found_by_the_content_of_its_settings(tmp_path):
    journal = Journal(tmp_path / "new" / "points.jsonl")
    assert journal.find(settings(4)) is None and not journal.path.parent.exists()
    assert journal.add(settings(4), {"accuracy": 0.5}) == {"accuracy": 0.5}
    reordered = {"rounding": {"axes": (0, 1), "mode": "nearest"}, "width": 4}
    for each in (journal, Journal(journal.path)):
        assert each.find(reordered) == each.get(settings(4)) == {"accuracy": 0.5}
        assert each.find(settings(5)) is None
        with pytest.raises(KeyError):
            each.get(settings(5))
    assert compute_key(reordered) == compute_key(settings(4)) != compute_key(settings(5))


def test_a_run_that_finds_all_points_has_the_file_among_its_artifacts(tmp_path):
    Journal(tmp_path / "points.jsonl").add(settings(1), {"accuracy": 0.1})
    for wanted, artifacts in ((1, ["points.jsonl"]), (2, [])):
        with start("sweep", {}, tmp_path) as run:
            Journal(tmp_path / "points.jsonl").find(settings(wanted))
        assert [artifact.path for artifact in run.manifest.artifacts] == artifacts


def test_the_last_result_counts_and_a_removed_one_is_gone(tmp_path):
    journal = Journal(tmp_path / "points.jsonl")
    journal.add(settings(1), {"accuracy": 0.1})
    journal.add(settings(1), {"accuracy": 0.2})
    journal.add(settings(2), {"accuracy": 0.3})
    journal.remove(settings(2))
    journal.remove(settings(3))
    for each in (journal, Journal(journal.path)):
        assert each.find(settings(1)) == {"accuracy": 0.2} and each.find(settings(2)) is None
    assert len(journal.path.read_text().splitlines()) == 4


@pytest.mark.parametrize("cut", [1, 2, 10, 40])
def test_a_torn_line_is_passed_over_and_swallows_no_other(cut, tmp_path):
    path = tmp_path / "points.jsonl"
    for number in (1, 2):
        Journal(path).add(settings(number), {"accuracy": number / 10})
    path.write_bytes(path.read_bytes()[:-cut])
    assert Journal(path).find(settings(1)) == {"accuracy": 0.1}
    assert Journal(path).find(settings(2)) == (None if cut > 1 else {"accuracy": 0.2})
    Journal(path).add(settings(3), {"accuracy": 0.3})
    found = Journal(path)
    assert [found.find(settings(n)) for n in (1, 3)] == [{"accuracy": 0.1}, {"accuracy": 0.3}]


def test_lines_of_others_do_no_harm(tmp_path):
    path = tmp_path / "points.jsonl"
    path.write_bytes(b'\xff\xfe\n[1]\n"text"\n{"settings": 3}\n\n{"result": {}}\nnull\n')
    journal = Journal(path)
    journal.add(settings(1), {"accuracy": 0.1})
    assert Journal(path).find(settings(1)) == {"accuracy": 0.1}


def test_what_another_process_appends_is_found(tmp_path):
    ours, theirs = Journal(tmp_path / "points.jsonl"), Journal(tmp_path / "points.jsonl")
    theirs.add(settings(1), {"accuracy": 0.1})
    assert ours.find(settings(1)) == {"accuracy": 0.1}
    with theirs.path.open("a") as file:
        line = json.dumps({"settings": settings(2), "result": {"accuracy": 0.2}})
        file.write(line[:20])
        file.flush()
        assert ours.find(settings(2)) is None
        file.write(line[20:] + "\n")
    assert ours.find(settings(2)) == {"accuracy": 0.2}


def test_lines_of_several_processes_are_whole(tmp_path):
    path = tmp_path / "points.jsonl"

    def add(first):
        journal = Journal(path)
        for number in range(first, first + POINTS):
            journal.add({**settings(number), "text": "x" * 5000}, {"accuracy": number})

    processes = [FORK.Process(target=add, args=(POINTS * i,)) for i in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    numbers = [json.loads(line)["result"]["accuracy"] for line in path.read_text().splitlines()]
    assert sorted(numbers) == list(range(3 * POINTS))


ADDING = """
import itertools, sys
from chop.base.files import documents, reading, writers
from chop.runs import Journal
journal = Journal(sys.argv[1])
for number in itertools.count():
    journal.add({"width": number, "text": "x" * 100000}, {"accuracy": number})
    print(number, flush=True)
"""


def test_a_kill_loses_no_point_that_was_told(tmp_path):
    path = tmp_path / "points.jsonl"
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", ADDING, path], stdout=subprocess.PIPE, text=True
        ) as process:
            told = [int(process.stdout.readline()) for _ in range(20)]
            os.kill(process.pid, signal.SIGKILL)
            told += [int(line) for line in process.stdout]
        assert process.returncode == -signal.SIGKILL
        journal = Journal(path)
        for number in told:
            found = journal.find({"width": number, "text": "x" * 100_000})
            assert found == {"accuracy": number}


FULL = """
import sys
from chop.errors import CheckpointError, WriteError
from chop.base.files import documents, reading, writers
from chop.runs import Journal
journal, told = Journal(sys.argv[1]), 0
try:
    while told < 10000:
        journal.add({"width": told}, {"accuracy": told})
        told += 1
except WriteError as error:
    sys.stdout.write(f"{told}\\n{error}\\n")
again = Journal(sys.argv[1])
assert all(again.find({"width": n}) == {"accuracy": n} for n in range(told))
"""


def test_a_full_disk_is_one_sentence_and_loses_no_point(tmp_path):
    script = 'mount -t tmpfs -o size=64k none "$1"; "$2" -c "$3" "$1/points.jsonl"'
    count, told = in_a_namespace(script, tmp_path, sys.executable, FULL).splitlines()
    assert 100 < int(count) < 10_000
    assert "points.jsonl' cannot be written: No space left on device; free some space" in told


@NEEDS_ROOT
def test_a_journal_that_may_only_be_read(open_to_all):
    path = open_to_all / "points.jsonl"
    Journal(path).add(settings(1), {"accuracy": 0.1})
    assert as_nobody(lambda: Journal(path).find(settings(1))) == {"accuracy": 0.1}
    error = as_nobody(lambda: Journal(path).add(settings(2), {"accuracy": 0.2}))
    assert isinstance(error, WriteError) and "Permission denied" in str(error)


@pytest.mark.parametrize("bound", ["bytes", "values"])
def test_a_journal_stays_one_that_can_be_read(bound, tmp_path, monkeypatch):
    if bound == "bytes":
        monkeypatch.setattr(reading, "BOUNDS", {**reading.BOUNDS, "journal": 600})
        monkeypatch.setattr(writers, "BOUNDS", reading.BOUNDS)
    else:
        for module in (documents, writers):
            monkeypatch.setattr(module, "MAX_VALUES", 40)
    path = tmp_path / "points.jsonl"
    journals = [Journal(path), Journal(path)]  # of two processes
    with pytest.raises(WriteError, match=r"points\.jsonl' is not written: it would have"):
        for number in range(100):
            journals[number % 2].add(settings(number), {"accuracy": number})
    last = len(path.read_text().splitlines()) - 1
    assert last >= 2 and Journal(path).find(settings(last)) == {"accuracy": last}


def test_a_journal_that_is_a_link_is_refused_and_its_target_kept(tmp_path):
    others = tmp_path / "others.txt"
    others.write_text("theirs\n")
    (tmp_path / "points.jsonl").symlink_to(others)
    for use in (lambda journal: journal.find({}), lambda journal: journal.add({}, {})):
        with pytest.raises(CheckpointError, match="links are not followed"):
            use(Journal(tmp_path / "points.jsonl"))
    assert others.read_text() == "theirs\n"


@pytest.mark.parametrize("wrong", ["x", [0.5], {"a": 1}, None, "missing"])
def test_a_result_that_its_reader_cannot_use_counts_as_missing(wrong, tmp_path):
    result = {"bits": 4.0} if wrong == "missing" else {"accuracy": wrong, "bits": 4.0}
    Journal(tmp_path / "points.jsonl").add(settings(1), result)
    journal = Journal(tmp_path / "points.jsonl")
    assert journal.find(settings(1), partial(has_numbers, names=["accuracy"])) is None
    assert journal.find(settings(1)) == result
    journal.add(settings(1), {"accuracy": 0.5, "low": None})
    assert journal.find(settings(1), partial(has_numbers, names=["accuracy"]))
