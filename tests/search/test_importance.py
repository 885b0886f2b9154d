"""Which choices matter, from the trials that were made."""

import os
import subprocess
import sys

import pytest

from chop.search import Choice, Goal, Search, SearchSpace
from chop.search.importance import importance_errors, importances

SPACE = SearchSpace(
    (
        Choice("main", {str(i): i for i in range(4)}),
        Choice("side", {str(i): i for i in range(4)}),
        Choice("idle", {"a": 0, "b": 0}),
        Choice("fixed", {"only": 0}),
    )
)


def _measure(config, report):
    values = SPACE.values(config)
    return {"loss": -(10.0 * values["main"] + 3.0 * values["side"]), "cost": 1.0}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sign", [1, -1])
def test_what_decides_comes_first_whichever_way_is_better(sign):
    goal = Goal("loss", "minimize") if sign == 1 else Goal("gain")

    def measure(config, report):
        return {goal.name: sign * _measure(config, report)["loss"]}

    result = Search(SPACE, measure, goal, sampler="grid", storage="memory").run(32, progress=False)
    shares = importances(result, SPACE)
    assert list(shares) == ["main", "side", "idle"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["main"] > 0.5 and shares["idle"] < 0.01
    errors = importance_errors(result, SPACE)
    assert set(errors) == set(shares) and errors == importance_errors(result, SPACE)
    assert 0 < errors["main"] < 0.5


def test_too_little_says_nothing():
    for name, until in (("loss", 4), ("cost", 20)):
        goal = Goal(name, "minimize")
        search = Search(SPACE, _measure, goal, sampler="random", storage="memory")
        result = search.run(until, progress=False)
        assert importances(result, SPACE) == importance_errors(result, SPACE) == {}


ORDER = """
from chop.search import Choice, Goal, Search, SearchSpace
from chop.search.importance import importances

names = [f"blocks.{i}.weight" for i in range(5)]
space = SearchSpace(tuple(Choice(name, {"a": 0, "b": 1}) for name in names))


def measure(config, report):
    return {"loss": float(space.values(config)[names[0]])}


goal = Goal("loss", "minimize")
search = Search(space, measure, goal, sampler="grid", storage="memory")
shares = importances(search.run(32, progress=False), space)
print(*shares)
"""


@pytest.mark.long
def test_equal_shares_have_the_same_order_in_every_process():
    printed = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", ORDER], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        printed.add(done.stdout)
    assert len(printed) == 1
