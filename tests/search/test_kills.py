"""Searches killed at random moments: nothing lost, nothing twice, the best model always there."""

import itertools
import os
import random
import signal
import time

import pytest

from tests.search.killing import SPACE, Killed, in_child, strike, table

LINES = 2500
"""Of the search, in which a kill falls: those of about four trials."""
IN_ORDER = 3
"""A trial that was begun more often is measured later than in an unbroken search."""


@pytest.fixture(params=["sqlite", "postgresql"])
def killed(request, tmp_path):
    """A search on each kind of storage."""
    is_file = request.param == "sqlite"
    storage = None if is_file else request.getfixturevalue("postgres").url
    return Killed(tmp_path, storage, name=f"study {time.time_ns()}")


@pytest.fixture(params=[4, pytest.param(6, marks=pytest.mark.long)])
def kills(request):
    """How often a search is killed."""
    return request.param


def kill_again_and_again(killed, kills, draw, workers, before):
    """Goes on with a larger total where nothing was left to kill."""
    until = 3
    while killed.kills[0] < kills:
        earlier = killed.kills[0]
        killed.run(until, workers, before(draw.randrange(1, LINES)))
        until += killed.kills[0] == earlier
        assert until <= SPACE.size
    assert killed.run(until + 2, workers) == 0
    return killed.check_end()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("seed", [0, *(pytest.param(x, marks=pytest.mark.long) for x in (1, 2))])
@pytest.mark.sampled(1)
def test_the_only_process_is_killed(seed, killed, kills, unbroken):
    act = killed.killer(die, 1)
    result = kill_again_and_again(
        killed, kills, random.Random(seed), 1, lambda after: lambda: strike(after, act)
    )
    if max(trial.begun for trial in result.trials) <= IN_ORDER:
        assert table(result) == unbroken[: killed.total]


VICTIMS = {
    "worker": (die, 1),
    "parent": (lambda: os.kill(os.getppid(), signal.SIGKILL), 2),
    "all": (lambda: os.killpg(0, signal.SIGKILL), 2),
}


IN_SHORT = [("all", "sqlite")]


@pytest.mark.parametrize(
    ("victim", "killed"),
    [
        pytest.param(*pair, marks=() if pair in IN_SHORT else pytest.mark.long)
        for pair in itertools.product(VICTIMS, ["sqlite", "postgresql"])
    ],
    indirect=["killed"],
)
def test_of_two_workers_is_killed(victim, killed, kills):
    draw = random.Random(victim)
    act = killed.killer(*VICTIMS[victim])

    def before(after):
        nth = draw.randrange(1, 3)
        return lambda: in_child(nth, lambda: strike(after, act))

    kill_again_and_again(killed, kills, draw, 2, before)
