"""Searches in processes of their own that are killed at chosen moments, and what must hold after.

A moment is a number of lines run, not of seconds, so that a slow machine changes nothing.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

import chop.base.files
import chop.search
from chop.search import Choice, Goal, Search, SearchSpace, workers

FORK = multiprocessing.get_context("fork")
SPACE = SearchSpace(tuple(Choice(f"c{i}", {"1": 1, "2": 2, "3": 3}) for i in range(3)))
KEEP = 2
FOLDERS = (
    *(str(Path(file).parent) for file in (chop.search.__file__, __file__)),
    chop.base.files.__file__,
)
PARTS = ("weights", "settings", "model")
DEADLINE = 120.0


def score(config):
    """Has ties: many configurations share the best values."""
    values = SPACE.values(config)
    return float(min(6, values["c0"] * values["c1"]) - (values["c2"] == 2))


class Journal:
    """A measure, and a save, that write down across processes what they begin and end."""

    def __init__(self, path, pause=0.0):
        self.path, self.pause = path, pause

    def note(self, what, config):
        with self.path.open("a") as file:
            file.write(json.dumps([what, SPACE.key(config), os.getpid()]) + "\n")

    def lines(self):
        text = self.path.read_text() if self.path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def count(self, what):
        return Counter(key for event, key, _ in self.lines() if event == what)

    def __call__(self, config, report):
        self.note("begin", config)
        for step in range(3):
            report(step, score(config))
            time.sleep(self.pause / 3)
        self.note("end", config)
        return {"score": score(config)}

    def save(self, config, folder):
        for part in PARTS:
            time.sleep(self.pause / 10)
            with (folder / part).open("w") as file:
                file.write(json.dumps(config)[:10])
                file.flush()
                file.write(json.dumps(config)[10:])


def make(folder, journal, storage=None, sampler="tpe", name="study", **settings):
    settings = {"save": journal.save, "keep": KEEP, "seed": 3, "out": folder, **settings}
    return Search(
        SPACE, journal, Goal("score"), sampler=sampler, storage=storage, name=name, **settings
    )


def strike(after, act, files=".py"):
    """Calls `act` when this thread has run so many lines of the files whose names end so."""
    left = after

    def trace(frame, event, arg):
        nonlocal left
        name = frame.f_code.co_filename
        if not name.startswith(FOLDERS) or not name.endswith(files) or name.endswith("space.py"):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                act()
        return trace

    sys.settrace(trace)


def in_a_process(work):
    """Runs `work` in a process of its own."""
    process = FORK.Process(target=work)
    process.start()
    return process


def in_a_group(work):
    """Runs `work` in a process that leads a process group of its own."""

    def lead():
        os.setpgid(0, 0)
        work()

    return in_a_process(lead)


def alive(group):
    """Processes of a group that run; zombies may wait for somebody to reap them."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def wait_until(holds, deadline=DEADLINE):
    end = time.monotonic() + deadline
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def ended(process):
    """Waits for the end of a process and of its group; returns how it ended."""
    process.join(DEADLINE)
    if process.exitcode is None:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError("the search hangs")
    wait_until(lambda: not alive(process.pid))
    return process.exitcode


def in_child(nth, work):
    """Lets the nth worker that this process starts begin with `work`."""
    child, start = workers._child, workers._start
    started = 0

    def counting(*arguments):
        nonlocal started
        started += 1
        return start(*arguments)

    def working(*arguments):
        if started == nth:
            work()
        child(*arguments)

    workers._child, workers._start = working, counting


def table(result):
    return [(t.config, dict(t.values)) for t in result.measured]


class Killed:
    """A search that is killed and begun again, and checked each time.

    Args:
        folder: of the search, and of what is noted of it.
        storage: None for SQLite in `folder`.
        settings: of `Journal` and `make`.

    Attributes:
        total: configurations that were asked for last.
    """

    def __init__(self, folder, storage=None, *, name="study", pause=0.0, **settings):
        self.journal = Journal(folder / "journal", pause)
        self.folder, self.best, self.log = folder, folder / name / "best", folder / "kills"
        self.log.touch()
        self.make = lambda: make(folder, self.journal, storage, name=name, **settings)
        self.total, self.finished = 0, {}

    @property
    def kills(self):
        """How many there were, and how many workers they may have ended."""
        lines = self.log.read_text().splitlines()
        return len(lines), sum(map(int, lines))

    def killer(self, send, workers):
        """What sends a kill, and notes before how many workers it may end."""

        def act():
            with self.log.open("a") as file:
                file.write(f"{workers}\n")
            send()

        return act

    def run(self, until, workers=1, before=lambda: None):
        """One attempt in a process of its own, which calls `before` first; how it ended."""
        self.total = until

        def work():
            before()
            self.make().run(until=until, workers=workers, progress=False)

        code = ended(in_a_group(work))
        self.check()
        return code

    def check(self):
        """What must hold at any moment; returns the result so far."""
        result = self.make().result()
        now = {t.number: t for t in result.trials if t.outcome not in ("running", "waiting")}
        assert self.finished.items() <= now.items(), "a finished trial was lost or changed"
        self.finished = now
        if result.best is not None:
            self.load(result.best)
        return result

    def load(self, trial):
        for part in PARTS:
            assert json.loads((self.best / trial.key / part).read_text()) == trial.config

    def check_end(self):
        """What must hold when the search is done; returns its result."""
        result = self.check()
        keys = {trial.key for trial in result.measured}
        assert result.counts.keys() <= {"measured", "cached"}
        assert len(result.measured) == self.total == len(keys)
        assert all(t.values == {"score": score(t.config)} for t in result.measured)
        ends = self.journal.count("end")
        assert ends.keys() == keys
        assert ends.total() - self.total <= self.kills[1]
        for trial in result.ranked[:KEEP]:
            self.load(trial)
        assert {path.name for path in self.best.iterdir()} == {t.key for t in result.ranked[:KEEP]}
        return result
