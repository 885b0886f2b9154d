import multiprocessing
import sqlite3
import time
from collections import Counter

import optuna
import pytest
import sqlalchemy as sa

from chop.errors import ConfigError, UnavailableError
from chop.search import Choice, Goal, Search, SearchSpace
from chop.search.storage import (
    MEMORY,
    TAKER,
    Claim,
    Ledger,
    begin_trial,
    leave_to_others,
    open_store,
    storage_file,
    storage_url,
    without_password,
    workers_of,
)

SPACE = SearchSpace(tuple(Choice(f"c{i}", {"1": 1, "2": 2, "3": 3}) for i in range(3)))
FORK = multiprocessing.get_context("fork")


def product(config, report):
    values = SPACE.values(config)
    return {"score": float(values["c0"] * values["c1"] - values["c2"])}


def make(url, measure=product, **settings):
    settings = {"sampler": "tpe", "seed": 3, **settings}
    return Search(SPACE, measure, Goal("score"), storage=url, **settings)


def table(result):
    return [(t.config, dict(t.values)) for t in result.measured]


def test_a_trial_that_two_workers_took_is_left_to_the_one_that_claimed(tmp_path):
    store = open_store(storage_url(None, tmp_path))
    study = optuna.create_study(storage=store.trials)
    study.enqueue_trial({"x": 1})
    taken = begin_trial(study, "worker 1")
    storage = study._storage
    storage.set_trial_user_attr(taken, TAKER + "worker 2", True)
    storage.set_trial_user_attr(taken, "worker", "worker 2")
    ledger = Ledger(store, study._study_id)
    assert [ledger.claim("a", 0, limit=2).is_new for _ in range(2)] == [True, False]
    leave_to_others(study, taken, "worker 2")
    assert workers_of(storage.get_trial(taken)) == ["worker 1"]


def test_what_a_held_trial_notes_twice_is_stored_as_noted_last(tmp_path):
    store = open_store(storage_url(None, tmp_path))
    study = optuna.create_study(storage=store.trials)
    taken = begin_trial(study, "worker 1")
    with store.trials.holding(taken) as keep:
        trial = optuna.Trial(study, taken)
        trial.suggest_int("x", 0, 3)
        keep()
        for value in ("cached", "lost"):
            trial.set_user_attr("outcome", value)
            store.trials.set_trial_system_attr(taken, "place", value)
        trial.set_user_attr("worker", "worker 2")  # this one is stored already
        study.tell(trial, 1.0)
    (fresh,) = optuna.load_study(study_name=study.study_name, storage=store.url).trials
    assert fresh.user_attrs == {"outcome": "lost", "worker": "worker 2"}
    assert fresh.system_attrs["place"] == "lost"
    assert fresh.params == trial.params and fresh.values == [1.0]


def test_names_of_storages(tmp_path):
    assert storage_url(None, tmp_path) == f"sqlite:///{tmp_path}/search.db"
    assert storage_url(str(tmp_path), None) == f"sqlite:///{tmp_path}/search.db"
    assert storage_url(str(tmp_path / "x.db"), None) == f"sqlite:///{tmp_path}/x.db"
    for name in ("postgresql://u:p@h/d", "postgres://u:p@h/d", "postgresql+psycopg://u:p@h/d"):
        assert storage_url(name, None) == "postgresql+psycopg://u:p@h/d"
    assert without_password("postgresql+psycopg://u:secret@h/d") == "postgresql+psycopg://u:***@h/d"
    assert storage_url(MEMORY, tmp_path) == MEMORY == without_password(MEMORY)
    with pytest.raises(ConfigError, match="kind 'redis'"):
        storage_url("redis://x", None)


@pytest.mark.parametrize("name", ["50 % done", "what?x=1", "a#b", "ä & %41"])
def test_folders_may_be_called_anything(name, tmp_path):
    url = storage_url(None, tmp_path / name)
    open_store(url).close()
    assert storage_file(url) == tmp_path / name / "search.db"
    assert storage_file(url).is_file()
    assert storage_file(MEMORY) is storage_file("postgresql+psycopg://h/d") is None


def test_sqlite_writes_ahead(tmp_path):
    store = open_store(storage_url(None, tmp_path / "new" / "folder"))
    with store.engine.connect() as connection:
        assert connection.execute(sa.text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(sa.text("PRAGMA synchronous")).scalar() == 1
    store.close()
    with sqlite3.connect(tmp_path / "new" / "folder" / "search.db") as connection:
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    assert {"trials", "studies", "chop_claims", "chop_workers"} <= names


@pytest.mark.parametrize(
    "url, message",
    [
        ("sqlite:////proc/nowhere/x.db", "nowhere"),
        ("postgresql+psycopg://u:secret@127.0.0.1:1/d", "cannot be used"),
    ],
)
def test_storages_that_are_not_there(url, message):
    with pytest.raises(OSError, match=message) as error:
        open_store(url)
    assert "secret" not in str(error.value)


def test_a_storage_to_read_must_be_there(tmp_path):
    with pytest.raises(UnavailableError, match="there is no search in"):
        open_store(storage_url(None, tmp_path), create=False)
    with pytest.raises(UnavailableError, match="is a folder"):
        open_store(f"sqlite:///{tmp_path}")
    assert not list(tmp_path.iterdir())


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request, tmp_path):
    url = {"memory": MEMORY, "sqlite": str(tmp_path / "x.db")}.get(request.param)
    if url is None:
        url = request.getfixturevalue("postgres").url
    store = open_store(storage_url(url, None))
    yield store
    store.close()


def test_the_ledger(store):
    ledger = Ledger(store, study_id=time.time_ns() % 10**9)
    assert ledger.claim("a", 0, limit=2) == Claim(0, is_new=True)
    assert ledger.claim("a", 1, limit=2) == Claim(0, is_new=False)
    assert ledger.claim("b", 2, limit=2) == Claim(2, is_new=True)
    assert ledger.claim("c", 3, limit=2) is None
    assert ledger.claim("c", 3, limit=3) == Claim(3, is_new=True)
    assert not ledger.take_over("a", 5, holder=1)
    assert ledger.take_over("a", 5, holder=0)
    assert ledger.claimed() == {"a": 5, "b": 2, "c": 3} and ledger.count() == 3
    assert Ledger(store, ledger.study + 1).count() == 0
    ledger.beat("me")
    ledger.beat("me")
    assert 0 <= ledger.beat_ages()["me"] < 5
    ledger.leave("me")
    assert ledger.beat_ages() == {}


def test_a_trial_says_who_runs_it_from_the_first_moment(store):
    name = f"study-{time.time_ns()}"
    study = optuna.create_study(study_name=name, storage=store.trials)
    first = store.trials.get_trial(begin_trial(study, "worker 1"))
    study.enqueue_trial({"c0": "3"})
    second = store.trials.get_trial(begin_trial(study, "worker 2"))
    assert [t.user_attrs["worker"] for t in (first, second)] == ["worker 1", "worker 2"]
    assert [t.state.name for t in study.trials] == ["RUNNING", "RUNNING"]
    assert first.datetime_start is not None and second.system_attrs["fixed_params"] == {"c0": "3"}


def claim_all(url, study, worker, queue):
    ledger = Ledger(open_store(url), study)
    wanted = {f"key {i}": 100 * worker + i for i in range(60)}
    claims = {key: ledger.claim(key, trial, 50) for key, trial in wanted.items()}
    queue.put([key for key, claim in claims.items() if claim is not None and claim.is_new])


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_of_many_workers_one_gets_each_claim(kind, tmp_path, request):
    url = str(tmp_path / "x.db") if kind == "sqlite" else request.getfixturevalue("postgres").url
    url, study, queue = storage_url(url, None), time.time_ns() % 10**9, FORK.Queue()
    open_store(url).close()
    processes = [FORK.Process(target=claim_all, args=(url, study, i, queue)) for i in range(3)]
    for process in processes:
        process.start()
    won = Counter(key for _ in processes for key in queue.get(timeout=60))
    for process in processes:
        process.join()
    assert len(won) == 50 and set(won.values()) == {1}


def test_the_same_search_on_every_storage(tmp_path, postgres):
    name = f"study-{time.time_ns()}"
    tables = [
        table(make(url, name=name).run(until=12, progress=False))
        for url in (MEMORY, str(tmp_path / "x.db"), postgres.url)
    ]
    assert tables[0] == tables[1] == tables[2]
    assert len(tables[0]) == 12


def test_workers_share_postgresql(postgres):
    search = make(postgres.url, name=f"study-{time.time_ns()}", sampler="random")
    result = search.run(until=SPACE.size, workers=2, progress=False)
    assert len(result.measured) == SPACE.size == len({t.key for t in result.measured})


def test_postgresql_itself_is_killed(postgres, tmp_path):
    name, begun = f"study-{time.time_ns()}", []
    unbroken = table(make(MEMORY, name=name).run(until=12, progress=False))

    def measure(config, report):
        begun.append(config)
        if len(begun) == 6:
            postgres.kill()
        return product(config, report)

    search = make(postgres.url, measure, name=name)
    with pytest.raises(UnavailableError, match="cannot be used.*chop search resume"):
        search.run(until=12, progress=False)
    postgres.start()
    survived = table(make(postgres.url, name=name).result())
    assert survived == unbroken[:5]
    result = search.run(until=12, progress=False)  # the very same object, in the same process
    assert table(result) == unbroken
    assert result.counts["lost"] == 1 and not {"running", "waiting"} & set(result.counts)
    assert len(begun) == 13
