"""Connections of SQLite are closed, however a search ends; newer Pythons warn of open ones."""

import gc
import sqlite3
import threading

import pytest
import sqlalchemy as sa

from chop.errors import ChopError
from chop.search import Choice, Goal, Search, SearchSpace
from chop.search.location import MEMORY, storage_url
from chop.search.optuna_view import export_study
from chop.search.reading import load_search
from chop.search.storage import open_engine

SPACE = SearchSpace((Choice("x", {"1": 1, "2": 2, "3": 3}),))


def search(folder, measure=lambda config, report: {"y": int(config["x"])}, **settings):
    return Search(SPACE, measure, Goal("y"), out=folder, **{"sampler": "grid"} | settings)


def interrupt(config, report):
    raise KeyboardInterrupt


def finish(folder):
    search(folder).run(until=3, progress=False)


def finish_in_memory(folder):
    found = search(None, storage=MEMORY)
    assert len(found.run(until=3, progress=False).trials) == 3
    assert len(found.result().trials) == 3  # trials stay as long as the search does


def use_two_workers(folder):
    search(folder).run(until=3, workers=2, progress=False)


def run_in_two_threads(folder):
    """The second one goes on after the first has ended."""
    both, ended = threading.Barrier(2), threading.Event()

    def measure(config, report):
        if both.wait(60) == 0:
            assert ended.wait(60)
        return {"y": int(config["x"])}

    def run():
        found.run(until=2, progress=False, wait=False)
        ended.set()

    found = search(folder, measure)
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.result().counts == {"measured": 2}


def is_interrupted(folder):
    with pytest.raises(KeyboardInterrupt):
        search(folder, interrupt).run(until=3, progress=False)


def is_interrupted_in_memory(folder):
    with pytest.raises(KeyboardInterrupt):
        search(None, interrupt, storage=MEMORY).run(until=3, progress=False)


def go_on_with_another_problem(folder):
    finish(folder)
    with pytest.raises(ChopError, match="was started with other"):
        search(folder, problem={"rows": "others"}).run(until=3, progress=False)


def look_at_trials(folder):
    finish(folder)
    assert len(load_search(str(folder))[1].trials) == 3
    assert len(search(folder).study.trials) == 3


def export_to_optuna(folder):
    finish(folder)
    assert export_study(str(folder), folder / "optuna.db") == 3


def open_what_is_damaged(folder):
    finish(folder)
    file = folder / "search.db"
    file.write_bytes(file.read_bytes()[:4096] + b"\xff" * 4096)
    for read_only in (False, True):
        with pytest.raises(ChopError, match="damaged"):
            open_engine(storage_url(None, folder), read_only=read_only)


def open_another_programs(folder):
    other = sqlite3.connect(folder / "search.db")
    other.execute("CREATE TABLE recipes (name TEXT)")
    other.close()
    for read_only in (False, True):
        with pytest.raises(ChopError, match="another program"):
            open_engine(storage_url(None, folder), read_only=read_only)


def forget_to_dispose_of_a_copy(folder):
    finish(folder)
    with open_engine(storage_url(None, folder), read_only=True).connect() as connection:
        assert connection.execute(sa.text("SELECT COUNT(*) FROM chop_trials")).scalar() == 3


def is_open(connection):
    try:
        connection.total_changes  # noqa: B018
    except sqlite3.ProgrammingError:
        return False
    return True


@pytest.mark.parametrize(
    "end",
    [
        finish,
        finish_in_memory,
        use_two_workers,
        run_in_two_threads,
        is_interrupted,
        is_interrupted_in_memory,
        go_on_with_another_problem,
        look_at_trials,
        pytest.param(export_to_optuna, marks=pytest.mark.long),
        open_what_is_damaged,
        open_another_programs,
        forget_to_dispose_of_a_copy,
    ],
    ids=lambda end: end.__name__,
)
def test_no_connection_is_left_open(end, tmp_path, monkeypatch):
    made, connect = [], sqlite3.connect

    def remember(*place, **settings):
        made.append(connect(*place, **settings))
        return made[-1]

    for module in (sqlite3, sqlite3.dbapi2):  # ours, and that of SQLAlchemy
        monkeypatch.setattr(module, "connect", remember)
    end(tmp_path)
    gc.collect()
    assert made and not [connection for connection in made if is_open(connection)]
