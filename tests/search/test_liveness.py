"""Workers that are gone, stopped, far away or only quiet, and searches that wait for them."""

import os
import shutil
import signal
import threading
import time

import pytest

from chop.errors import ChopError
from chop.runs import process
from chop.search import workers
from chop.search.ledger import Ledger
from chop.search.workers import HeartbeatMonitor
from tests.search.killing import (
    SPACE,
    Journal,
    alive,
    ended,
    in_a_group,
    make,
    score,
    wait_until,
)

BEAT, SILENT = 0.1, 1.0


@pytest.fixture
def quick(monkeypatch):
    """Signs of life that are so frequent that tests can wait for silence."""
    monkeypatch.setattr(workers, "HEARTBEAT_SECONDS", BEAT)
    monkeypatch.setattr(workers, "SILENT_SECONDS", SILENT)
    monkeypatch.setattr(workers, "RUNNING_SECONDS", SILENT)


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "journal")


def begins(journal, count=1):
    wait_until(lambda: journal.count("begin").total() >= count)


def elsewhere(monkeypatch):
    """This process is one of another machine."""
    monkeypatch.setattr(process, "system_id", lambda: "elsewhere")


def far(work):
    """Runs `work` as on another machine."""

    def there():
        process.system_id = lambda: "elsewhere"
        work()

    return in_a_group(there)


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_far_worker_vanishes_while_the_run_waits(count, quick, journal, tmp_path):
    slow = Journal(journal.path, pause=100)
    process = far(lambda: make(tmp_path, slow).run(until=1, progress=False))
    begins(journal)
    process.kill()

    def runs():
        make(tmp_path, journal).run(until=3, workers=count, progress=False)

    assert ended(in_a_group(runs)) == 0
    result = make(tmp_path, journal).result()
    assert len(result.measured) == 3 and result.trials[0].begun == 2
    assert result.counts.keys() <= {"measured", "cached"}


def test_a_far_worker_that_joins_between_two_looks_keeps_its_trial(journal, tmp_path):
    search = make(tmp_path, journal)
    search.run(until=1, progress=False)
    with search.opened() as ledger:
        monitor = HeartbeatMonitor()
        monitor.poll(ledger, "me")
        ledger.heartbeat("elsewhere:17:1:1")
        ledger.claim("new", {"config": SPACE.at(0)}, "elsewhere:17:1:1", 9)
        assert monitor.orphaned(ledger) == []


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_far_worker_that_joins_late_keeps_its_trial(count, quick, journal, tmp_path):
    """The last trial is begun elsewhere while this run has nothing left to do but wait."""
    slow = Journal(journal.path, pause=1.5)
    process = far(lambda: make(tmp_path, slow).run(until=2, progress=False))
    begins(journal)
    other = in_a_group(lambda: make(tmp_path, slow).run(until=2, workers=count, progress=False))
    assert ended(other) == ended(process) == 0
    result = make(tmp_path, journal).result()
    assert result.counts == {"measured": 2} and [t.begun for t in result.trials] == [1, 1]
    assert set(journal.count("begin").values()) == {1}


def test_a_run_that_ended_without_a_word_holds_no_trial_while_its_process_lives(
    quick, journal, tmp_path
):
    """As a notebook whose run was interrupted right after a claim."""

    def stays():
        def interrupted(*arguments):
            raise KeyboardInterrupt

        workers_run = make(tmp_path, journal)
        workers_run.measure = interrupted
        Ledger.release = lambda *a, **k: None
        try:
            workers_run.run(until=1, progress=False)
        except KeyboardInterrupt:
            journal.note("begin", SPACE.at(0))
        time.sleep(100)

    process = in_a_group(stays)
    begins(journal)
    runs = in_a_group(lambda: make(tmp_path, journal).run(until=2, progress=False))
    try:
        assert ended(runs) == 0
    finally:
        process.kill()
    assert make(tmp_path, journal).result().counts == {"measured": 2}


def test_a_copied_folder_goes_on_without_the_workers_of_the_original(quick, journal, tmp_path):
    slow = Journal(journal.path, pause=100)
    process = in_a_group(lambda: make(tmp_path / "a", slow).run(until=2, progress=False))
    begins(journal)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    runs = in_a_group(lambda: make(tmp_path / "b", journal).run(until=2, progress=False))
    try:
        assert ended(runs) == 0
    finally:
        process.kill()
    result = make(tmp_path / "b", journal).result()
    assert result.counts == {"measured": 2} and result.trials[0].begun == 2
    assert make(tmp_path / "a", journal).result().counts == {"running": 1}


def leaves_a_child(config, report):
    """A measure that forks, and whose child stays."""
    if os.fork() == 0:
        time.sleep(100)
        os._exit(0)
    return {"score": score(config)}


def test_a_killed_worker_is_noticed_while_a_child_of_its_measure_lives(journal, tmp_path):
    def measure(config, report):
        begun = journal.count("begin").total()
        journal.note("begin", config)
        if begun == 0:
            leaves_a_child(config, report)
            os.kill(os.getpid(), signal.SIGKILL)
        return {"score": score(config)}

    def runs():
        search = make(tmp_path, journal, save=None)
        search.measure = measure
        search.run(until=4, workers=2, progress=False)

    process = in_a_group(runs)
    try:
        wait_until(lambda: process.exitcode is not None)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    assert process.exitcode == 0
    assert len(make(tmp_path, journal).result().measured) == 4


def test_workers_end_with_their_parent_though_a_child_of_a_measure_lives(journal, tmp_path):
    def measure(config, report):
        journal.note("begin", config)
        leaves_a_child(config, report)
        time.sleep(0.2)
        return {"score": score(config)}

    def runs():
        search = make(tmp_path, journal, save=None)
        search.measure = measure
        search.run(until=27, workers=2, progress=False)

    process = in_a_group(runs)
    begins(journal, 3)
    process.kill()
    process.join()
    pids = {pid for _, _, pid in journal.lines()}
    running = lambda: [p for p in alive(process.pid) if p.pid in pids]  # noqa: E731
    try:
        wait_until(lambda: not running(), 10)
    finally:
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.long
def test_a_measure_that_exits_is_told(code, journal, tmp_path):
    def runs():
        search = make(tmp_path, journal)
        search.measure = lambda config, report: os._exit(code)
        with pytest.raises(ChopError, match="killed|ended"):
            search.run(until=4, workers=2, progress=False)

    assert ended(in_a_group(runs)) == 0


@pytest.mark.parametrize("part", ["measure", "save"])
def test_a_stopped_worker_that_wakes_after_its_trial_was_taken_records_nothing(
    part, quick, journal, tmp_path
):
    def stops():
        os.kill(os.getpid(), signal.SIGSTOP)

    def runs():
        search = make(tmp_path, journal)
        if part == "measure":
            search.measure = lambda config, report: stops() or journal(config, report)
        else:
            search.artifacts.save = lambda config, folder: journal.save(config, folder) or stops()
        journal.note("begun", SPACE.at(0))
        search.run(until=1, progress=False)

    process = far(runs)
    wait_until(lambda: alive(process.pid) and alive(process.pid)[0].status() == "stopped")
    result = make(tmp_path, journal).run(until=2, progress=False)
    assert result.counts == {"measured": 2} and result.trials[0].begun == 2
    os.kill(process.pid, signal.SIGCONT)
    assert ended(process) == 0
    assert make(tmp_path, journal).result() == result
    assert {p.name for p in (tmp_path / "study" / "best").iterdir()} == {
        t.key for t in result.ranked[:2]
    }


def test_two_runs_in_threads_of_one_process(journal, tmp_path):
    errors = []

    def run(search):
        try:
            search.run(until=20, progress=False)
        except BaseException as error:
            errors.append(error)

    for searches in (
        [make(tmp_path, journal, name="x"), make(tmp_path, journal, name="x")],
        [make(tmp_path, journal, name="y")] * 2,
    ):
        threads = [threading.Thread(target=run, args=(search,)) for search in searches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        assert searches[0].result().counts.get("measured") == 20
