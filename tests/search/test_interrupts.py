"""Interruptions and errors at every stage of a search, its saves and its callbacks."""

import gc
import os
import random
import signal
import sqlite3
import sys
import time

import pytest

from chop.search import Goal, Search, study, workers
from tests.search.killing import (
    SPACE,
    Journal,
    Killed,
    ended,
    in_a_group,
    make,
    score,
    strike,
    table,
    wait_until,
)


def interrupt():
    raise KeyboardInterrupt


@pytest.fixture
def closed_connections():
    """Closes after the test the connections that an interruption left open."""
    yield
    for item in gc.get_objects():  # on 3.12, no object refers to such a connection
        if isinstance(item, sqlite3.Connection):
            item.close()


# The interruption may come between `open` and `with` of the file that is being saved.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("storage", [None, "memory"])
@pytest.mark.usefixtures("closed_connections")
@pytest.mark.sampled(1)
def test_an_interruption_at_any_line(storage, tmp_path, unbroken):
    """The same process goes on, with a new search or with the same one."""
    draw, killed = random.Random(0), Killed(tmp_path, storage)
    search = killed.make()
    interrupted, until = 0, 2
    while interrupted < 15:
        strike(draw.randrange(1, 1500), interrupt)
        try:
            search.run(until=until, progress=False)
            until += 1
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        assert until < SPACE.size
        search = search if storage else killed.make()
    killed.total = until
    killed.log.write_text("1\n" * interrupted)
    result = search.run(until=until, progress=False)
    assert result.counts.keys() <= {"measured", "cached"}
    assert len(result.measured) == until
    if max(trial.begun for trial in result.trials) <= 3:
        assert table(result) == unbroken[:until]
    if storage is None:
        killed.check_end()


def test_callbacks_and_saves_that_raise(tmp_path, unbroken):
    for storage in (None, "memory"):
        raised = []

        def fails(*arguments, raised=raised):
            raised.append(arguments)
            if len(raised) in (2, 5, 6):
                raise RuntimeError("no space left")

        for part in ("callbacks", "save"):
            raised.clear()
            journal = Journal(tmp_path / f"journal {part} {storage}")

            def save(config, folder, journal=journal, fails=fails):
                (folder / "half").touch()
                fails()
                journal.save(config, folder)

            given = {"callbacks": [fails]} if part == "callbacks" else {"save": save}
            search = make(tmp_path, journal, storage, name=f"{part} {storage}", **given)
            for _ in range(3):
                with pytest.raises(RuntimeError, match="no space left"):
                    search.run(until=12, progress=False)
            result = search.run(until=12, progress=False)
            assert result.counts.keys() <= {"measured", "cached"}
            assert table(result) == unbroken[:12]
            folders = {path.name for path in (tmp_path / f"{part} {storage}" / "best").iterdir()}
            assert folders == {trial.key for trial in result.ranked[:2]}
            if part == "callbacks":
                assert set(journal.count("begin").values()) == {1}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *(("SIGTERM", 1), ("SIGINT", 2), ("SIGHUP", 1)),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("SIGTERM", 2), ("SIGINT", 1), ("SIGHUP", 2))
        ),
    ],
)
@pytest.mark.sampled(1)
def test_signals_end_the_search_and_its_workers(name, count, tmp_path):
    killed = Killed(tmp_path, pause=0.05)

    def runs():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under `nohup`
        killed.make().run(until=20, workers=count, progress=False)

    process = in_a_group(runs)
    wait_until(lambda: killed.journal.count("end").total() >= 3)
    os.kill(process.pid, getattr(signal, name))
    assert ended(process) != 0
    assert len(killed.check().measured) < 20
    killed.log.write_text("2\n")
    assert killed.run(20, count) == 0
    killed.check_end()


def test_an_ending_that_ignores_interruptions(tmp_path):
    """As in a shell's background job: workers that do not hear one are ended otherwise."""
    killed = Killed(tmp_path, pause=0.05)

    def runs():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        workers.END_SECONDS = 0.1
        search = killed.make()

        def run_workers(*arguments, on_poll, **named):
            def broken():
                if killed.journal.count("end").total() > 2:
                    raise ZeroDivisionError

            return original(*arguments, on_poll=broken, **named)

        original, study.run_workers = study.run_workers, run_workers
        try:
            search.run(until=27, workers=2, progress=False)
        except ZeroDivisionError:
            os._exit(7)

    assert ended(in_a_group(runs)) == 7
    assert len(killed.check().measured) < 27


@pytest.mark.parametrize("slow_is_first", [True, False])
def test_ties_keep_the_best_model(slow_is_first, tmp_path):
    """Equal values; the trial that was begun first ends last, or first."""

    def measure(config, report):
        journal.note("begin", config)
        number = journal.count("begin").total()
        if (number == 1) is slow_is_first:
            wait_until(lambda: journal.count("end").total() >= 1)
            time.sleep(0.3)
        journal.note("end", config)
        return {"score": 1.0}

    journal = Journal(tmp_path / "journal")
    search = Search(
        SPACE, measure, Goal("score"), sampler="grid", out=tmp_path, save=journal.save, keep=1
    )
    result = search.run(until=2, workers=2, progress=False)
    assert [t.values["score"] for t in result.measured] == [1.0, 1.0]
    assert [p.name for p in (tmp_path / "search" / "best").iterdir()] == [result.best.key]


@pytest.mark.long
def test_two_studies_of_one_folder_keep_their_own(tmp_path):
    a, b = (Killed(tmp_path, name=name) for name in ("a", "b"))
    b.log = b.log.with_name("b kills")
    b.log.touch()
    b.journal = Journal(tmp_path / "b journal")
    b.make = lambda: make(tmp_path, b.journal, name="b", seed=9)
    act = a.killer(lambda: os.kill(os.getpid(), signal.SIGKILL), 1)
    for until in range(2, 6):
        a.run(until, 1, lambda: strike(2500, act))
        b.run(until, 1)
        a.check(), b.check()
    a.run(6), b.run(6)
    a.check_end(), b.check_end()


@pytest.mark.long
def test_a_measure_with_threads_and_processes(tmp_path):
    import multiprocessing
    from concurrent.futures import ThreadPoolExecutor

    def measure(config, report):
        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(score, [config] * 3))
        process = multiprocessing.get_context("fork").Process(target=score, args=(config,))
        process.start()
        process.join()
        assert process.exitcode == 0
        return {"score": found[0]}

    for count in (1, 2):
        search = Search(
            SPACE, measure, Goal("score"), sampler="random", out=tmp_path, name=f"w{count}"
        )
        assert search.run(until=8, workers=count, progress=False).counts["measured"] == 8
