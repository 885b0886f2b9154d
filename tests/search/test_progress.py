"""Progress of a search in a pipe: a line for each trial, with the best and the time left."""

import io

import pytest
from rich.console import Console

from chop.search import Choice, Goal, Search, SearchSpace, progress

SPACE = SearchSpace(
    (Choice("x", {str(i): i for i in range(6)}), Choice("y", {str(i): i for i in range(6)}))
)


def product(config, report):
    if config["x"] == "3":
        raise ValueError("three")
    return {"product": int(config["x"]) * int(config["y"])}


def search(sampler="grid", **settings):
    given = {"storage": "memory", "catch": (ValueError,), **settings}
    return Search(SPACE, product, Goal("product"), sampler=sampler, **given)


@pytest.fixture
def printed(monkeypatch):
    file = io.StringIO()
    console = Console(file=file, width=200)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.0)
    return lambda: file.getvalue().splitlines()


def numbers(lines):
    return [line.partition(":")[0] for line in lines]


def test_every_trial_is_a_line_with_its_values(printed):
    found = search().run(until=24)
    lines = printed()
    assert numbers(lines) == [f"{i} of 24" for i in range(1, 25)]
    assert lines[1].startswith("2 of 24: trial 1, product ") and "; best product " in lines[1]
    assert lines[-2].endswith(" left") and " left" not in lines[-1]
    assert sum(", failed; " in line for line in lines) == len(found.failed) > 0


def test_a_resumed_search_tells_what_is_there_in_one_line(printed, tmp_path):
    search(storage=None, out=tmp_path).run(until=3)
    search(storage=None, out=tmp_path).run(until=5)
    assert numbers(printed()) == [f"{i} of 3" for i in (1, 2, 3)] + [f"{i} of 5" for i in (3, 4, 5)]
    assert "trial" not in printed()[3] and printed()[3].endswith("-:--:-- left")


def test_lines_have_the_best_of_the_trials_so_far(printed, monkeypatch):
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 1000.0)  # all lines are written at the end
    found = search().run(until=18)
    ended = [t for t in found.trials if t.outcome in ("measured", "failed")]
    for end, line in enumerate(printed(), 1):
        products = [t.values["product"] for t in ended[:end] if t.outcome == "measured"]
        expected = f"best product {max(products):.4g}" if products else "no feasible trial yet"
        assert expected in line or not products, line


def test_many_short_trials_share_a_line(printed, monkeypatch):
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 1000.0)
    monkeypatch.setattr(progress, "MAX_LINES", 5)
    search().run(until=12)
    assert numbers(printed()) == ["12 of 12"]


def test_a_search_that_is_to_be_silent_is(printed):
    search().run(until=3, progress=False)
    assert printed() == []


def test_a_terminal_gets_a_bar_and_no_lines(monkeypatch):
    file = io.StringIO()
    console = Console(file=file, width=120, force_terminal=True)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    search().run(until=4)
    assert "4/4" in file.getvalue() and "0:00:00 left" in file.getvalue()
    assert "trial 1, " not in file.getvalue()


def test_workers_of_one_run_have_a_line_for_each_trial_too(printed, tmp_path):
    search("random", storage=None, out=tmp_path).run(until=6, workers=2)
    lines = printed()
    assert numbers(lines)[-1] == "6 of 6" and len(lines) == 6
