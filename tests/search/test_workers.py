"""Searches that are killed for real: every process here is a process, every kill a SIGKILL."""

import functools
import json
import multiprocessing
import os
import signal
import time
from collections import Counter

import optuna
import pytest

from chop.errors import ChopError
from chop.search import Choice, Goal, Search, SearchSpace, runner
from chop.search.choosers import SAMPLERS
from chop.search.held import HoldingStorage
from chop.search.runner import Runner
from chop.search.storage import Ledger
from chop.search.workers import SILENT_SECONDS, Worker, _started, beating, is_gone, is_lost

SPACE = SearchSpace(tuple(Choice(f"c{i}", {"1": 1, "2": 2, "3": 3}) for i in range(3)))
UNTIL = 12
FORK = multiprocessing.get_context("fork")


class Journalled:
    """A measure that writes down, across processes, when it begins and ends."""

    def __init__(self, path, seconds=0.0):
        self.path, self.seconds = path, seconds

    def note(self, what, config):
        with self.path.open("a") as file:
            file.write(json.dumps([what, SPACE.key(config), os.getpid()]) + "\n")

    def read(self, what):
        lines = map(json.loads, self.path.read_text().splitlines())
        return Counter(key for event, key, _ in lines if event == what)

    def __call__(self, config, report):
        self.note("begin", config)
        time.sleep(self.seconds)
        values = SPACE.values(config)
        score = values["c0"] * values["c1"] - values["c2"] ** 2
        self.note("end", config)
        return {"score": float(score)}


def make(folder, measure, sampler="tpe", **settings):
    settings = {"out": folder, "seed": 3, **settings}
    return Search(SPACE, measure, Goal("score"), sampler=sampler, **settings)


def in_a_process(work):
    process = FORK.Process(target=work)
    process.start()
    return process


def kill_after(owner, name, nth):
    """Lets this process be killed when `owner.name` returns for the nth time."""
    original, calls = getattr(owner, name), Counter()

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        result = original(*args, **kwargs)
        calls[name] += 1
        if calls[name] == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, wrapped)


def table(result):
    return [(t.config, dict(t.values)) for t in result.measured]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    return table(make(folder, Journalled(folder / "journal")).run(until=UNTIL, progress=False))


MOMENTS = {
    "the trial is made": (runner, "begin_trial", 4),
    "half of it is sampled": (HoldingStorage, "set_trial_param", 11),
    "all of it is sampled": (SearchSpace, "suggest", 4),
    "what was sampled is stored": (HoldingStorage, "_store", 4),
    "it is claimed": (Ledger, "claim", 4),
    "the measure ends": (Journalled, "__call__", 4),
    "a value is written": (optuna.Trial, "set_user_attr", 4),
    "half of its end is written": (HoldingStorage, "_write", 8),
    "it is told": (optuna.Study, "tell", 4),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_only_process_is_killed_when(moment, tmp_path, unbroken):
    measure = Journalled(tmp_path / "journal")

    def dies():
        kill_after(*MOMENTS[moment])
        make(tmp_path, measure).run(until=UNTIL, progress=False)

    process = in_a_process(dies)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    finished = table(make(tmp_path, measure).result())
    assert len(finished) >= 3
    search = make(tmp_path, measure)
    result = search.run(until=UNTIL, progress=False)
    assert table(result) == unbroken
    assert table(result)[: len(finished)] == finished
    assert not {"running", "waiting"} & set(result.counts)
    again = [key for key, times in measure.read("begin").items() if times > 1]
    assert len(again) <= 1 and set(measure.read("end").values()) <= {1, 2}
    assert search.resume() == 0


def test_the_only_process_is_killed_again_and_again(tmp_path, unbroken):
    measure = Journalled(tmp_path / "journal", seconds=0.02)
    kills = 0
    for delay in (0.05, 0.1, 0.15, 0.2, 0.3, 0.4):
        process = in_a_process(lambda: make(tmp_path, measure).run(until=UNTIL, progress=False))
        process.join(delay)
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
    result = make(tmp_path, measure).run(until=UNTIL, progress=False)
    assert kills >= 3
    assert sorted(map(str, table(result))) == sorted(map(str, unbroken))
    begun, ended = measure.read("begin"), measure.read("end")
    assert sum(begun.values()) <= UNTIL + kills
    assert set(ended) == {trial.key for trial in result.measured}
    assert not {"running", "waiting"} & set(result.counts)


@pytest.mark.parametrize("moment", ["begin", "end"])
def test_one_worker_of_two_is_killed(moment, tmp_path):
    once = tmp_path / "killed"

    class Deadly(Journalled):
        def note(self, what, config):
            super().note(what, config)
            if what == moment and sum(self.read("begin").values()) >= 5:
                try:
                    once.touch(exist_ok=False)
                except FileExistsError:
                    return
                os.kill(os.getpid(), signal.SIGKILL)

    measure = Deadly(tmp_path / "journal", seconds=0.02)
    search = make(tmp_path, measure, sampler="random")
    result = search.run(until=SPACE.size, workers=2, progress=False)
    assert once.exists()
    assert len(result.measured) == SPACE.size == len({t.key for t in result.measured})
    assert result.counts["lost"] == 1
    begun = measure.read("begin")
    assert set(begun) == {t.key for t in result.measured}
    assert sorted(begun.values()) == [1] * (SPACE.size - 1) + [2]
    assert len({pid for _, _, pid in map(json.loads, measure.path.read_text().splitlines())}) >= 2


def test_a_worker_takes_up_what_a_killed_one_lost(tmp_path):
    slow = Journalled(tmp_path / "journal", seconds=60)
    process = in_a_process(lambda: make(tmp_path, slow).run(until=UNTIL, progress=False))
    deadline = time.monotonic() + 30
    while not slow.path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    quick = Journalled(slow.path)
    search = make(tmp_path, quick)
    assert search.resume() == 0  # its worker is alive
    assert search.result().counts == {"running": 1}
    process.kill()
    process.join()
    assert search.resume() == 1
    assert search.result().counts == {"lost": 1, "waiting": 1}
    result = search.run(until=UNTIL, progress=False)
    assert result.counts["measured"] == UNTIL
    assert [t.config for t in result.trials if t.outcome == "lost"] == [result.trials[1].config]


def test_a_worker_killed_as_it_takes_a_queued_trial(tmp_path):
    def dies():
        search = make(tmp_path, Journalled(tmp_path / "journal"))
        search.enqueue({"c0": "3", "c1": "3", "c2": "1"})
        kill_after(optuna.storages._CachedStorage, "set_trial_state_values", 1)
        search.run(until=2, progress=False)

    in_a_process(dies).join()
    search = make(tmp_path, Journalled(tmp_path / "journal"))
    assert search.result().counts == {"running": 1}
    result = search.run(until=2, progress=False)
    assert result.counts == {"measured": 2, "lost": 1}
    assert result.measured[0].config == {"c0": "3", "c1": "3", "c2": "1"}


def deadly(config, report):
    if config == {"c0": "2", "c1": "1", "c2": "1"}:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"score": 1.0}


def test_a_configuration_that_kills_every_worker_is_given_up(tmp_path):
    search = make(tmp_path, deadly, sampler="grid")
    result = search.run(until=SPACE.size, workers=2, progress=False)
    counts = {name: result.counts[name] for name in ("measured", "failed", "lost")}
    # Two that notice a loss at once may both queue it: at most 2 + 4 attempts before the last.
    assert 2 <= counts.pop("lost") <= 6
    assert counts == {"measured": SPACE.size - 1, "failed": 1}
    given_up = next(trial for trial in result.trials if trial.outcome == "failed")
    assert given_up.note == "its worker ended 3 times"
    assert given_up.config == {"c0": "2", "c1": "1", "c2": "1"}


def test_a_search_that_kills_all_its_workers_ends_with_an_error(tmp_path):
    always = lambda config, report: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    search = make(tmp_path, always, sampler="grid")
    with pytest.raises(ChopError, match="killed"):
        search.run(until=SPACE.size, workers=2, progress=False)
    assert not {"running", "measured"} & set(search.result().counts)


def test_two_workers_share_the_work_and_an_error_of_one_is_told(tmp_path):
    measure = Journalled(tmp_path / "journal", seconds=0.05)
    result = make(tmp_path, measure, sampler="random").run(until=20, workers=2, progress=False)
    assert len(result.measured) == 20 == len(measure.read("begin"))
    assert set(measure.read("begin").values()) == {1}

    def broken(config, report):
        raise RuntimeError("no such kernel")

    with pytest.raises(ChopError, match="RuntimeError: no such kernel"):
        make(tmp_path, broken, sampler="random").run(until=22, workers=2, progress=False)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_two_workers_and_a_restart_measure_nothing_twice(sampler, tmp_path):
    measure = Journalled(tmp_path / "journal", seconds=0.01)
    totals = (3, 6) if sampler == "gp" else (5, 10)
    for until in totals:
        result = make(tmp_path, measure, sampler=sampler).run(until, workers=2, progress=False)
        assert len(result.measured) == until == len({t.key for t in result.measured})
    assert measure.read("begin") == Counter(t.key for t in result.measured)
    # What was queued when the other worker took the last place waits for a larger total.
    assert not {"running", "failed"} & set(result.counts)


def test_what_was_queued_stays_queued_when_the_total_is_reached(tmp_path):
    search = make(tmp_path, Journalled(tmp_path / "journal"), sampler="random")
    search.run(until=2, progress=False)
    wanted = {"c0": "3", "c1": "3", "c2": "1"}
    search.enqueue(wanted)
    runner = Runner(search.task, search.study, Ledger(search._opened.store, search.study._study_id))
    runner.turn(until=2)  # as a worker does that saw room just before another took it
    assert search.result().counts == {"measured": 2, "surplus": 1, "waiting": 1}
    assert search.run(until=3, progress=False).measured[-1].config == wanted
    search.close()


def test_workers_are_told_apart():
    me = Worker.new()
    parent = me._replace(pid=os.getppid(), started=_started(os.getppid()))
    assert Worker.parse(str(me)) == me != Worker.new()
    assert parent.runs_here() and not parent._replace(started="1").runs_here()
    assert not me.runs_here()
    with beating(Beats({}), str(me), alone=True):
        assert me.runs_here()
    assert not me.runs_here()
    process = in_a_process(lambda: None)
    while process.exitcode is None:
        time.sleep(0.01)
    assert not me._replace(pid=process.pid).runs_here()


class Beats:
    def __init__(self, ages):
        self.ages = ages

    def beat_ages(self):
        return self.ages


@pytest.mark.parametrize(
    "age, gone", [(0.0, False), (SILENT_SECONDS - 1, False), (SILENT_SECONDS, True)]
)
def test_of_other_machines_the_age_of_the_last_beat_counts(age, gone):
    other = "elsewhere:17:1:1"
    beats, me = Beats({other: age}), Worker.new()
    assert is_gone(other, beats) == gone
    assert is_gone(other, Beats({}))
    for attrs in ({"worker": other}, {}, {f"taker {other}": True, f"taker {me}": True}):
        assert is_lost(optuna.trial.create_trial(value=0.0, user_attrs=attrs), beats) == gone
    nobody = optuna.trial.create_trial(value=0.0)
    assert is_lost(nobody, Beats({str(me): 0.0}))
