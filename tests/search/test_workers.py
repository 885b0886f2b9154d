"""Searches that are killed for real: every process here is a process, every kill a SIGKILL."""

import contextlib
import functools
import itertools
import os
import random
import signal
import time
from collections import Counter

import optuna
import psutil
import pytest

from chop.errors import ChopError
from chop.search import Choice, Goal, Search, SearchSpace
from chop.search.ledger import Ledger
from chop.search.optuna_study import InMemoryStudy
from chop.search.registry import SAMPLERS
from tests.search.killing import SPACE, Journal, in_a_process, table, wait_until

UNTIL = 12


def make(folder, measure, sampler="tpe", **settings):
    settings = {"out": folder, "seed": 3, **settings}
    return Search(SPACE, measure, Goal("score"), sampler=sampler, **settings)


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


MOMENTS = {
    "a configuration is proposed": (InMemoryStudy, "ask", 4),
    "half of it is sampled": (optuna.storages.InMemoryStorage, "set_trial_param", 11),
    "it is about to be claimed": (SearchSpace, "key", 10),
    "it is claimed": (Ledger, "claim", 4),
    "the measure ends": (Journal, "__call__", 4),
    "it is told in memory": (optuna.Study, "tell", 4),
    "it is told": (Ledger, "finish", 4),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.sampled(1)
def test_the_only_process_is_killed_when(moment, tmp_path, unbroken):
    measure = Journal(tmp_path / "journal")

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
    assert table(result) == unbroken[:UNTIL]
    assert table(result)[: len(finished)] == finished
    assert not {"running", "waiting"} & set(result.counts)
    again = [key for key, times in measure.count("begin").items() if times > 1]
    assert len(again) <= 1 and set(measure.count("end").values()) <= {1, 2}
    assert set(again) <= {trial.key for trial in result.trials if trial.begun == 2}


@pytest.mark.parametrize("moment", ["begin", "end"])
@pytest.mark.sampled(1)
def test_one_worker_of_two_is_killed(moment, tmp_path):
    once = tmp_path / "killed"

    class Deadly(Journal):
        def note(self, what, config):
            super().note(what, config)
            if what == moment and sum(self.count("begin").values()) >= 5:
                try:
                    once.touch(exist_ok=False)
                except FileExistsError:
                    return
                os.kill(os.getpid(), signal.SIGKILL)

    measure = Deadly(tmp_path / "journal", pause=0.02)
    search = make(tmp_path, measure, sampler="random")
    result = search.run(until=SPACE.size, workers=2, progress=False)
    assert once.exists()
    assert len(result.measured) == SPACE.size == len({t.key for t in result.measured})
    assert sorted(trial.begun for trial in result.trials)[-2:] == [1, 2]
    begun = measure.count("begin")
    assert set(begun) == {t.key for t in result.measured}
    assert sorted(begun.values()) == [1] * (SPACE.size - 1) + [2]
    assert len({pid for _, _, pid in measure.lines()}) >= 2


def test_a_worker_killed_as_it_takes_a_queued_trial(tmp_path):
    wanted = {"c0": "3", "c1": "3", "c2": "1"}

    def dies():
        search = make(tmp_path, Journal(tmp_path / "journal"))
        search.enqueue(wanted)
        kill_after(Ledger, "claim_row", 1)
        search.run(until=2, progress=False)

    in_a_process(dies).join()
    search = make(tmp_path, Journal(tmp_path / "journal"))
    assert search.result().counts == {"running": 1}
    result = search.run(until=2, progress=False)
    assert result.counts == {"measured": 2}
    assert result.measured[0].config == wanted


def deadly(config, report):
    if config == {"c0": "2", "c1": "1", "c2": "1"}:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"score": 1.0}


@pytest.mark.long
def test_a_configuration_that_kills_every_worker_is_left_to_the_last(tmp_path):
    search = make(tmp_path, deadly, sampler="grid")
    with pytest.raises(
        ChopError, match=r"killed, like 6 before it.*; trial \d+ was started \d times"
    ):
        search.run(until=SPACE.size, workers=2, progress=False)
    assert len(search.result().measured) == SPACE.size - 1
    (kills,) = (trial for trial in search.result().trials if trial.outcome == "running")
    assert kills.config == {"c0": "2", "c1": "1", "c2": "1"} and kills.begun >= 4
    harmless = make(tmp_path, lambda config, report: {"score": 1.0}, sampler="grid")
    assert len(harmless.run(until=SPACE.size, progress=False).measured) == SPACE.size


@pytest.mark.long
def test_a_search_that_kills_all_its_workers_ends_with_an_error(tmp_path):
    always = lambda config, report: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    search = make(tmp_path, always, sampler="grid")
    with pytest.raises(ChopError, match="killed"):
        search.run(until=SPACE.size, workers=2, progress=False)
    assert set(search.result().counts) == {"running"}


@pytest.mark.parametrize("kills", [3, 5])
@pytest.mark.sampled(1)
def test_kills_within_one_configuration_never_drop_it(kills, tmp_path):
    measure = Journal(tmp_path / "journal", pause=30)
    for times in range(1, kills + 1):
        process = in_a_process(lambda: make(tmp_path, measure).run(until=1, progress=False))
        wait_until(lambda times=times: measure.count("begin").total() >= times)
        assert make(tmp_path, measure).result().counts == {"running": 1}
        process.kill()
        process.join()
    result = make(tmp_path, Journal(measure.path)).run(until=1, progress=False)
    assert result.counts == {"measured": 1} and result.trials[0].begun == kills + 1


def test_workers_end_with_the_process_that_started_them(tmp_path):
    measure = Journal(tmp_path / "journal", pause=60)
    parent = in_a_process(
        lambda: make(tmp_path, measure, sampler="random").run(8, workers=2, progress=False)
    )
    wait_until(lambda: measure.count("begin").total() >= 2)
    pids = {pid for _, _, pid in measure.lines()}
    parent.kill()
    parent.join()
    children = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(children, timeout=10)
    assert len(pids) == 2 and not alive


def test_one_worker_goes_on_when_the_process_that_started_it_ends(tmp_path):
    def starts_one_and_ends():
        in_a_process(
            lambda: make(tmp_path, Journal(tmp_path / "journal", 0.02)).run(
                until=UNTIL, progress=False
            )
        )
        os._exit(0)  # without waiting for it

    in_a_process(starts_one_and_ends).join()
    search = make(tmp_path, Journal(tmp_path / "journal"))
    wait_until(lambda: len(search.result().measured) == UNTIL)


def test_two_workers_share_the_work_and_an_error_of_one_is_told(tmp_path):
    measure = Journal(tmp_path / "journal", pause=0.05)
    result = make(tmp_path, measure, sampler="random").run(until=20, workers=2, progress=False)
    assert len(result.measured) == 20 == len(measure.count("begin"))
    assert set(measure.count("begin").values()) == {1}

    def broken(config, report):
        raise RuntimeError("no such kernel")

    with pytest.raises(ChopError, match="RuntimeError: no such kernel"):
        make(tmp_path, broken, sampler="random").run(until=22, workers=2, progress=False)


def test_a_worker_with_a_long_error_is_heard(tmp_path):
    def broken(config, report):
        raise RuntimeError("x" * 100_000)

    with pytest.raises(ChopError, match="RuntimeError: xxx"):
        make(tmp_path, broken, sampler="random").run(until=3, workers=2, progress=False)


IN_SHORT = [("random", "asha"), ("nsga2", "hyperband"), ("cmaes", "median")]


@pytest.mark.parametrize(
    ("sampler", "pruner"),
    [
        pytest.param(*pair, marks=() if pair in IN_SHORT else pytest.mark.long)
        for pair in itertools.product(["random", "nsga2", "cmaes"], ["asha", "hyperband", "median"])
    ],
)
@pytest.mark.sampled(1)
def test_pruners_and_samplers_go_on_as_if_never_interrupted(sampler, pruner, tmp_path):
    wide = SearchSpace(tuple(Choice(f"c{i}", dict.fromkeys("12345")) for i in range(4)))

    class Stepwise:
        begun, interrupted = 0, ()

        def __call__(self, config, report):
            self.begun += 1
            for step in range(1, 9):
                if (self.begun, step) in self.interrupted:
                    raise KeyboardInterrupt
                report(step, sum(map(int, config.values())) / step)
            return {"score": float(sum(map(int, config.values())))}

    def search(name, measure):  # of one study name: Hyperband draws by it
        settings = {"sampler": sampler, "pruner": pruner, "out": tmp_path / name}
        return Search(wide, measure, Goal("score"), **settings)

    def told(result):
        return [(t.config, t.outcome, dict(t.values)) for t in result.trials]

    unbroken = told(search("unbroken", Stepwise()).run(40, progress=False))
    assert {"measured", "pruned"} <= {outcome for _, outcome, _ in unbroken}
    measure = Stepwise()
    measure.interrupted = ((4, 1), (12, 1), (23, 2))
    for _ in range(4):
        with contextlib.suppress(KeyboardInterrupt):
            broken = search("broken", measure)
            broken.run(40, progress=False)
    assert told(broken.result()) == unbroken


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.sampled(1)
def test_two_workers_and_a_restart_measure_nothing_twice(sampler, tmp_path):
    measure = Journal(tmp_path / "journal", pause=0.01)
    totals = (3, 6) if sampler == "gp" else (5, 10)
    for until in totals:
        result = make(tmp_path, measure, sampler=sampler).run(until, workers=2, progress=False)
        assert len(result.measured) == until == len({t.key for t in result.measured})
    assert measure.count("begin") == Counter(t.key for t in result.measured)
    # What was queued when the other worker took the last place waits for a larger total.
    assert not {"running", "failed"} & set(result.counts)


def test_what_was_queued_stays_queued_when_the_total_is_reached(tmp_path):
    search = make(tmp_path, Journal(tmp_path / "journal"), sampler="random")
    search.run(until=2, progress=False)
    wanted = {"c0": "3", "c1": "3", "c2": "1"}
    search.enqueue(wanted)
    assert search.run(until=2, progress=False).counts == {"measured": 2, "waiting": 1}
    assert search.run(until=3, progress=False).measured[-1].config == wanted


def refused(values):
    return "too large" if values["c0"] + values["c1"] > 4 else None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.long
def test_a_sampler_that_looks_at_no_result_measures_the_same_with_several_workers(tmp_path, seed):
    choices = tuple(Choice(f"c{i}", {"1": 1, "2": 2, "3": 3}) for i in range(4))
    space = SearchSpace(choices, infeasible=refused)
    found = {}
    for count in (1, 3):

        def measure(config, report, count=count):
            time.sleep(0.02 * random.Random(f"{count}{config}").random())
            return {"score": float(space.values(config)["c0"])}

        settings = {"out": tmp_path / str(count), "seed": seed}
        search = Search(space, measure, Goal("score"), sampler="random", **settings)
        result = search.run(until=18, workers=count, progress=False)
        found[count] = {trial.key for trial in result.measured}
    assert len(found[1]) == 18 and found[1] == found[3]


def test_what_a_killed_search_half_wrote_goes_when_its_result_is_read(tmp_path):
    def save(config, folder):
        (folder / "weights").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    measure = Journal(tmp_path / "journal")
    search = functools.partial(make, tmp_path, measure, save=save, keep=2)
    process = in_a_process(lambda: search().run(until=UNTIL, progress=False))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    best = next(path for path in tmp_path.rglob("best"))
    assert len([*best.glob(".*.part")]) == 1
    assert search().result().measured == []
    assert not [*best.iterdir()]
