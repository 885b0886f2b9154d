"""Models on disk are those of the best trials, at a cost that does not grow with the search."""

import itertools
import random

import pytest

from chop.search import Constraint, Goal, Result, TrialRecord
from chop.search.artifacts import Artifacts

GOALS = {
    "one": (Goal("y"), Constraint("z", 5.0)),
    "front": (Goal("y"), Goal("z", "minimize")),
    "free": (Goal("y", "minimize"),),
}


def drawn_trials(count):
    draw = random.Random(1)
    values = (
        {"y": float(draw.randrange(40)), "z": float(draw.randrange(12))} for _ in range(count)
    )
    return [TrialRecord(i, "measured", {"x": str(i)}, f"k{i}", v) for i, v in enumerate(values)]


@pytest.mark.parametrize("goals", GOALS.values(), ids=GOALS)
@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("foreign", [0, 3])
def test_what_is_saved_is_what_a_ranking_of_all_trials_saves(tmp_path, goals, keep, foreign):
    """Every so many trials are another worker's: its models are not offered here."""
    saved = []
    artifacts = Artifacts(tmp_path, keep, lambda config, folder: saved.append(int(config["x"])))
    trials, expected = drawn_trials(120), []
    for trial in trials:
        so_far = Result(goals, tuple(trials[: trial.number + 1]))
        if foreign and trial.number % foreign == 0:
            continue
        if trial in so_far.top(keep):
            expected.append(trial.number)
        artifacts.offer(trial, goals, lambda so_far=so_far: so_far)
        artifacts.clean(lambda so_far=so_far: so_far)
    assert saved == expected and len(saved) < 60
    best = {trial.key for trial in Result(goals, tuple(trials)).top(keep)}
    assert foreign or {path.name for path in tmp_path.iterdir()} == best


def test_a_trial_that_another_worker_took_over_is_no_leader(tmp_path):
    goals, trials = GOALS["free"], drawn_trials(2)
    better, worse = sorted(trials, key=lambda trial: trial.values["y"])
    saved = []
    artifacts = Artifacts(tmp_path, 1, lambda config, folder: saved.append(config["x"]))
    artifacts.offer(better, goals, lambda: Result(goals, ()))
    artifacts.offer(worse, goals, lambda: Result(goals, ()))  # the better one never ended
    assert saved == [better.config["x"], worse.config["x"]]


def test_a_trial_that_is_beaten_ranks_no_others(tmp_path):
    goals, read = GOALS["one"], itertools.count()
    trials = drawn_trials(500)
    artifacts = Artifacts(tmp_path, 1, lambda config, folder: None)

    def offer(trial):
        def so_far():
            next(read)
            return Result(goals, tuple(trials[: trial.number]))

        artifacts.offer(trial, goals, so_far)
        artifacts.clean(so_far)

    for trial in trials:
        offer(trial)
    assert next(read) < 40
