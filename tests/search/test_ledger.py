"""The rows of a study on every kind of storage, and many processes at one."""

import contextlib
import multiprocessing
import time
from collections import Counter

import pytest

from chop.errors import UnavailableError
from chop.search import Choice, Goal, Search, SearchSpace, ledger
from chop.search.ledger import RUNNING, WAITING, Ledger, make_tables, studies
from chop.search.location import MEMORY, storage_url
from chop.search.storage import open_engine

SPACE = SearchSpace(tuple(Choice(f"c{i}", {"1": 1, "2": 2, "3": 3}) for i in range(3)))
FORK = multiprocessing.get_context("fork")
A, B, C = ({"x": text} for text in "abc")
KINDS = ["memory", "sqlite", "postgresql"]


def product(config, report):
    values = SPACE.values(config)
    return {"score": float(values["c0"] * values["c1"] - values["c2"])}


def make(url, measure=product, **settings):
    settings = {"sampler": "tpe", "seed": 3, **settings}
    return Search(SPACE, measure, Goal("score"), storage=url, **settings)


def table(result):
    return [(t.config, dict(t.values)) for t in result.measured]


@contextlib.contextmanager
def opened(url, study=""):
    engine = open_engine(url)
    make_tables(engine)
    yield Ledger(engine, study)
    engine.dispose()


@pytest.fixture(params=KINDS)
def url(request, tmp_path):
    """A storage of each kind."""
    named = {"memory": MEMORY, "sqlite": str(tmp_path / "x.db")}.get(request.param)
    return storage_url(named or request.getfixturevalue("postgres").url, None)


@pytest.fixture
def rows(url):
    with opened(url, f"study {time.time_ns()}") as ledger:
        assert ledger.begin({"search": {"goals": 1}}) == {"search": {"goals": 1}}
        yield ledger


@pytest.mark.sampled(1)
def test_a_study_is_begun_once(rows):
    assert rows.begin({"search": 2}) == {"search": {"goals": 1}}
    rows.set_entry("job", {"name": "nas"})
    assert Ledger(rows.engine, rows.study).document() == {
        "search": {"goals": 1},
        "job": {"name": "nas"},
    }
    assert rows.study in studies(rows.engine)
    assert Ledger(rows.engine, "another").document() == {}


def test_claims(rows):
    first = rows.claim("a", {"config": A}, "me", limit=2)
    assert (first.number, first.worker, first.outcome, first.begun) == (0, "me", RUNNING, 1)
    assert rows.claim("a", {"config": A}, "you", limit=2) == first
    assert rows.claim("b", {"config": B}, "you", limit=2).worker == "you"
    assert rows.claim("c", {"config": C}, "me", limit=2) is None
    assert rows.claim("c", {"config": C}, "me", limit=3).number == 2
    assert rows.by_key == {"a": 0, "b": 1, "c": 2}
    other = Ledger(rows.engine, rows.study)
    other.sync()
    assert other.rows == rows.rows
    assert Ledger(rows.engine, rows.study + "1").sync() == []


def test_a_trial_ends_once_and_by_the_worker_that_has_it(rows):
    row = rows.claim("a", {"config": A}, "me", limit=2)
    assert rows.claim_row(row, "you").begun == 2
    assert rows.claim_row(row, "me") is None
    assert not rows.finish(row, "me", "measured", {"config": A, "values": {"y": 1.0}})
    rows.report(row, "me", {"config": A, "steps": {"1": 9.0}})
    assert rows.rows[0].parsed == {"config": A}
    assert rows.finish(row, "you", "measured", {"config": A, "values": {"y": 2.0}})
    assert not rows.finish(row, "me", "failed", {"config": A})
    rows.release(row, "you", errors=1)
    rows.sync()
    (told,) = rows.records
    assert (told.outcome, told.values, told.begun, told.key) == ("measured", {"y": 2.0}, 2, "a")
    assert rows.rows[0].errors == 0 and not rows.open


def test_queued_trials_wait_for_room(rows):
    for key, config in (("a", A), ("b", B), ("a", A)):
        rows.queue(key, config)
    assert [row.key for row in rows.unfinished(WAITING)] == ["a", "b"]
    first, second = rows.unfinished(WAITING)
    assert rows.claim("a", {"config": A}, "me", limit=1).outcome == WAITING
    assert rows.claim("c", {"config": C}, "me", limit=2) is None
    assert rows.claim_row(second, "you", limit=1) is None
    taken = rows.claim_row(first, "me", limit=1)
    assert (taken.outcome, taken.begun) == (RUNNING, 1)  # more than once after kills alone
    assert rows.claim_row(first, "you", limit=2) is None
    assert rows.claim_row(second, "you", limit=2).worker == "you"
    assert rows.claim("c", {"config": C}, "me", limit=3).number == 2


def test_a_row_is_added_by_who_knows_those_before_it(rows):
    other = Ledger(rows.engine, rows.study)
    for key in "abc":
        rows.claim(key, {"config": A}, "me", limit=9)
    assert other.claim("d", {"config": A}, "you", limit=3) is None  # it has not read the others yet
    assert other.claim("b", {"config": A}, "you", limit=9).worker == "me"
    assert other.add("cached", {"config": A}) == 3
    assert rows.claim("d", {"config": A}, "me", limit=4).number == 4


def test_a_document_is_made_once_its_row_has_its_number(rows):
    told = []

    def tell():
        told.append(len(rows.rows))
        return {"config": A, "note": "mine"}

    other = Ledger(rows.engine, rows.study)
    other.add("cached", {"config": B})
    assert rows.add("cached", {"config": A}, 0, tell) is None and not told
    assert rows.add("cached", {"config": A}, 1, tell) == 1 and told == [1]
    other.sync()
    assert [row.parsed for row in other.rows] == [{"config": B}, {"config": A, "note": "mine"}]
    assert other.rows == rows.rows

    def fails():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rows.add("cached", {"config": A}, 2, fails)
    assert other.add("cached", {"config": B}) == 2 and not rows.sync()[1:]


@pytest.mark.parametrize("is_feasible", [True, False])
def test_a_sampler_is_told_of_rows_alone(is_feasible, tmp_path, monkeypatch):
    """A trial that was cached, or cannot be, loses its place to another worker's at first."""
    url = storage_url(str(tmp_path / "x.db"), None)
    choices = (Choice("c", {"1": 1, "2": 2, "3": 3}),)
    space = SearchSpace(choices)
    if not is_feasible:
        space = SearchSpace(choices, lambda values: "one" if values["c"] == 1 else None)
    numbers, studies_seen, true = [], [], Ledger.add

    def add(self, outcome, document, number=None, *more):
        if not numbers:
            other = Ledger(self.engine, self.study)
            other.sync()
            true(other, "cached", {"config": {"c": "2"}, "state": "FAIL"})
        numbers.append(true(self, outcome, document, number, *more))
        return numbers[-1]

    monkeypatch.setattr(Ledger, "add", add)
    search = Search(
        space,
        lambda config, report: {"score": 1.0},
        Goal("score"),
        sampler="random",
        seed=3,
        storage=url,
        callbacks=(lambda study, trial: studies_seen.append(study),),
    )
    found = search.run(len(choices[0].options) - (not is_feasible))
    assert numbers[0] is None and len(numbers) > 1
    told = [x for x in studies_seen[0].trials if x.user_attrs.get("outcome") != "busy"]
    assert len(told) == len(found.trials)


def test_what_is_new_is_read_alone(rows):
    row = rows.claim("a", {"config": A}, "me", limit=9)
    rows.finish(row, "me", "measured", {"config": A})
    running = rows.claim("b", {"config": B}, "you", limit=9)
    other = Ledger(rows.engine, rows.study)
    assert [row.number for row in other.sync()] == [0, 1]
    assert rows.add("cached", {"config": A}) == 2
    assert [row.number for row in rows.sync()] == [running.number]
    assert [row.number for row in other.sync()] == [1, 2] and other.rows == rows.rows


def test_heartbeats_are_counted(rows):
    assert rows.heartbeats() == {}
    for _ in range(3):
        rows.heartbeat("me")
    rows.heartbeat("you")
    assert rows.heartbeats() == {"me": 3, "you": 1}
    rows.remove_worker("me")
    assert rows.heartbeats() == {"you": 1}


def together(url, study, work):
    """What three processes return, which begin at once."""
    queue, barrier = FORK.Queue(), FORK.Barrier(3)

    def run(worker):
        with opened(url, study) as rows:
            barrier.wait()
            queue.put(work(rows, f"worker {worker}"))

    processes = [FORK.Process(target=run, args=(i,)) for i in range(3)]
    for process in processes:
        process.start()
    found = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("url", KINDS[1:], indirect=True)
def test_of_many_workers_one_gets_each_claim(url):
    study = f"study {time.time_ns()}"
    with opened(url, study) as rows:
        rows.begin({})

    def claim(rows, me):
        claims = {key: rows.claim(key, {"config": A}, me, 50) for key in map(str, range(60))}
        return [key for key, row in claims.items() if row is not None and row.worker == me]

    won = Counter(key for keys in together(url, study, claim) for key in keys)
    assert len(won) == 50 and set(won.values()) == {1}
    with opened(url, study) as rows:
        assert [row.number for row in rows.sync()] == list(range(50))


@pytest.mark.parametrize("url", KINDS[1:], indirect=True)
@pytest.mark.sampled(1)
def test_of_many_workers_one_takes_over_each_lost_trial(url):
    study = f"study {time.time_ns()}"
    with opened(url, study) as rows:
        rows.begin({})
        lost = [rows.claim(str(i), {"config": A}, "gone", 30) for i in range(30)]

    def take(rows, me):
        return [row.number for row in lost if rows.claim_row(row, me) is not None]

    won = Counter(number for numbers in together(url, study, take) for number in numbers)
    assert len(won) == 30 and set(won.values()) == {1}


def test_the_same_search_on_every_storage(tmp_path, postgres):
    name = f"study {time.time_ns()}"
    tables = [
        table(make(url, name=name).run(until=12, progress=False))
        for url in (MEMORY, str(tmp_path / "x.db"), postgres.url)
    ]
    assert tables[0] == tables[1] == tables[2]
    assert len(tables[0]) == 12


@pytest.fixture
def killed_in_the_sixth(postgres):
    """A measure that kills the server in the midst of its sixth configuration."""
    begun = []

    def measure(config, report):
        begun.append(config)
        if len(begun) == 6:
            postgres.kill()
        return product(config, report)

    measure.begun = begun
    return measure


def test_postgresql_is_killed_and_stays_away(postgres, killed_in_the_sixth, monkeypatch):
    monkeypatch.setattr(ledger, "RECONNECT_SECONDS", 0.1)
    name = f"study {time.time_ns()}"
    unbroken = table(make(MEMORY, name=name).run(until=12, progress=False))
    search = make(postgres.url, killed_in_the_sixth, name=name)
    with pytest.raises(UnavailableError, match="cannot be used.*chop search resume"):
        search.run(until=12, progress=False)
    postgres.start()
    assert table(make(postgres.url, name=name).result()) == unbroken[:5]
    result = search.run(until=12, progress=False)  # the very same object, in the same process
    assert table(result) == unbroken
    assert [trial.begun for trial in result.measured] == [1] * 5 + [2] + [1] * 6


def test_postgresql_is_killed_and_comes_back(postgres, killed_in_the_sixth, monkeypatch):
    def starts_it(seconds):
        monkeypatch.undo()
        postgres.start()

    monkeypatch.setattr(ledger.time, "sleep", starts_it)
    name = f"study {time.time_ns()}"
    result = make(postgres.url, killed_in_the_sixth, name=name).run(until=12, progress=False)
    assert table(result) == table(make(MEMORY, name=name).run(until=12, progress=False))
    assert len(killed_in_the_sixth.begun) == 12  # nothing was measured again
