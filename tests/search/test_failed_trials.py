"""Objectives that are no numbers: the trial fails and says why, and the search goes on."""

import logging
import math

import pytest

from chop.actions.search.manage import show_search
from chop.search import Choice, Constraint, Goal, Search, SearchSpace
from chop.search.progress import headline

GOALS = {
    "one": (Goal("profit"),),
    "two": (Goal("profit"), Goal("cost", "minimize")),
    "constrained": (Goal("profit"), Constraint("cost", 8.0)),
}


@pytest.fixture
def space():
    options = {text: int(text) for text in "123"}
    return SearchSpace(tuple(Choice(f"c{i}", options, cost=options) for i in range(3)))


def measure(name, value):
    """A number for each goal, and `value` for one of them at a third of the space."""

    def numbers(config, report):
        total = float(sum(map(int, config.values())))
        found = {"profit": total, "cost": total}
        return {**found, name: value} if config["c0"] == "2" else found

    return numbers


@pytest.mark.parametrize("goals", GOALS)
@pytest.mark.parametrize("sampler", ["sensitivity", "random", "grid", "tpe", "nsga2"])
@pytest.mark.sampled(3)
def test_a_trial_without_a_number_fails_and_the_search_goes_on(space, goals, sampler, tmp_path):
    name = "cost" if goals == "two" else "profit"
    for until in (10, 14):  # the second run goes on with the first
        search = Search(space, measure(name, math.nan), GOALS[goals], sampler=sampler, out=tmp_path)
        result = search.run(until=until, progress=False)
        assert len(result.measured) + len(result.failed) == until
    assert result.failed and all(trial.config["c0"] == "2" for trial in result.failed)
    assert {trial.note for trial in result.failed} == {f"the measure returned NaN for '{name}'."}
    assert result.best.config["c0"] != "2"
    assert all(trial.config["c0"] != "2" for trial in (*result.front, *result.ranked))
    states = [trial.state.name for trial in search.study.trials if trial.state.name != "COMPLETE"]
    assert states.count("FAIL") >= len(result.failed)


@pytest.mark.parametrize(
    ("direction", "value", "fails"),
    [("maximize", math.inf, True), ("maximize", -math.inf, False), ("minimize", -math.inf, True)],
)
def test_an_infinite_profit_fails_and_an_infinite_loss_is_the_worst(space, direction, value, fails):
    goal = Goal("profit", direction)
    search = Search(space, measure("profit", value), goal, sampler="grid", storage="memory")
    result = search.run(until=27, progress=False)
    assert len(result.failed) == (9 if fails else 0)
    assert result.best.values["profit"] == (9 if direction == "maximize" else 3)
    if fails:
        assert (
            result.failed[0].note == f"the measure returned {value} for 'profit', to {direction}."
        )


def test_the_log_names_the_trial_and_a_search_where_all_fail_says_so(
    space, tmp_path, caplog, capsys
):
    search = Search(
        space, lambda config, report: {"profit": math.nan}, Goal("profit"), out=tmp_path
    )
    with caplog.at_level(logging.WARNING, logger="chop.search.runner"):
        result = search.run(until=3, progress=False)
    assert result.best is None and result.counts == {"failed": 3}
    said = "nothing was measured: 3 failed; trial 0: the measure returned NaN for 'profit'."
    assert result.why_nothing == headline(result) == said
    assert "trial 1 failed: the measure returned NaN for 'profit' (c0=" in caplog.text
    assert show_search(str(tmp_path)).best is None
    printed = capsys.readouterr().out
    assert "failed" in printed and "returned NaN for 'profit'" in printed


def test_an_option_read_as_a_number_gets_a_note(space, tmp_path):
    def measure(config, report):
        return {"profit": config["c0"] / 2}

    with pytest.raises(TypeError) as caught:
        Search(space, measure, GOALS["one"], out=tmp_path).run(until=1, progress=False)
    assert "space.values(config) returns their values" in caught.value.__notes__[0]
