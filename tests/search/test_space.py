import dataclasses
import itertools
import pickle
import subprocess
import sys

import optuna
import pytest

from chop.errors import ConfigError
from chop.search import Choice, Constraint, Goal, SearchSpace
from chop.search.objective import (
    check_values,
    goals_from_json,
    goals_to_json,
    select_constraints,
    select_objectives,
)

HEADS = Choice("heads", {"2": 2, "3": 3, "4": 4})
SIZE = Choice("size", {"64": 64, "96": 96}, cost={"64": 1.0, "96": 1.5})


def uneven(values):
    return "heads must divide size" if values["size"] % values["heads"] else None


@pytest.fixture
def space():
    return SearchSpace((HEADS, SIZE), infeasible=uneven)


def test_the_grid_is_every_configuration_once_and_lazy(space):
    grid = list(space.grid())
    assert len(grid) == space.size == 6
    assert len({space.key(config) for config in grid}) == 6
    assert grid[1] == {"heads": "2", "size": "96"} == space.at(1)
    huge = SearchSpace(tuple(Choice(f"c{i}", dict.fromkeys("abcdefghi")) for i in range(40)))
    first = list(itertools.islice(huge.grid(), 10))
    assert first[9]["c38"] == "b" and first[9]["c39"] == "a"
    assert huge.size == 9**40
    assert set(huge.at(huge.size - 1).values()) == {"i"}


def test_neighbors_differ_in_so_many_choices(space):
    config = {"heads": "2", "size": "64"}
    one, two = list(space.neighbors(config)), list(space.neighbors(config, 2))
    assert len(one) == 3 and len(two) == 2
    for changes, found in ((1, one), (2, two)):
        assert all(sum(c[n] != config[n] for n in c) == changes for c in found)
    assert list(space.neighbors(config, 3)) == []


def test_values_and_costs(space):
    config = {"heads": "3", "size": "64"}
    assert space.values(config) == {"heads": 3, "size": 64}
    assert space.cost(config) == 1.0
    assert space.why_infeasible(config) == "heads must divide size"
    assert space.why_infeasible({"heads": "3", "size": "96"}) is None


def test_choices_that_do_not_count_share_the_key_of_their_first_option():
    layers = [Choice(f"layer{i}", {"4": 4, "8": 8}) for i in range(3)]
    depth = Choice("depth", {"1": 1, "2": 2, "3": 3})
    space = SearchSpace(
        (depth, *layers),
        active=lambda v: ["depth", *(f"layer{i}" for i in range(v["depth"]))],
    )
    folded = {"depth": "1", "layer0": "8", "layer1": "4", "layer2": "4"}
    assert space.folded({**folded, "layer1": "8", "layer2": "8"}) == folded
    assert space.key({**folded, "layer2": "8"}) == space.key(folded)
    assert len({space.key(config) for config in space.grid()}) == 2 + 4 + 8
    mirrored = dataclasses.replace(space, canonical=lambda c: {**c, "layer0": "4"})
    assert mirrored.folded({**folded, "layer1": "8"}) == {**folded, "layer0": "4"}


def test_the_key_is_the_same_in_every_process_and_order(space):
    key = space.key({"heads": "2", "size": "64"})
    assert key == space.key({"size": "64", "heads": "2"})
    code = (
        "from chop.search import *; print(SearchSpace((Choice('heads', {'2': 2}), "
        "Choice('size', {'64': 64}))).key({'size': '64', 'heads': '2'}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == key


@pytest.mark.parametrize("spelling", ["text", "index"])
def test_optuna_suggests_from_the_same_space(space, spelling):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen = []
    study.optimize(lambda trial: seen.append(space.suggest(trial, spelling)) or 0.0, n_trials=30)
    states = {t.state for t in study.trials}
    assert states == {optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED}
    assert all(space.why_infeasible(config) is None for config in seen)
    for trial in study.trials:
        config = space.from_params(trial.params)
        assert space.to_params(config, spelling) == trial.params
        assert trial.distributions == space.distributions(spelling)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"head": "2", "size": "64"}, "did you mean 'heads'"),
        ({"heads": "2", "size": "65"}, "choose from: 64, 96"),
        ({"heads": "2"}, "choice 'size' is missing"),
        ({"heads": 2, "size": "64"}, "unknown option 2: did you mean '2'"),
    ],
)
def test_wrong_configurations_are_named(space, config, message):
    with pytest.raises(ConfigError, match=message):
        space.check(config)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Choice("", {"a": 1}), "name"),
        (lambda: Choice("x", {}), "expected options"),
        (lambda: Choice("x", {1: 1}), "expected a str"),
        (lambda: Choice("x", {"a": 1}, cost={"b": 1.0}), "unknown option 'b'"),
        (lambda: Choice("x", {"a": 1, "b": 2}, cost={"a": 1.0}), "'b' has no finite cost"),
        (lambda: SearchSpace(()), "at least one choice"),
        (lambda: SearchSpace((HEADS, HEADS)), "two choices are called 'heads'"),
        (lambda: Goal("accuracy", "maximise"), "did you mean 'maximize'"),
        (lambda: Goal("val_loss"), r"pass the direction: Goal\('val_loss', 'minimize'\)"),
        (lambda: Goal("latency_ms"), "the default is 'maximize'"),
        (lambda: Constraint("bits", float("nan")), "expected a number"),
        (lambda: select_objectives((Constraint("bits", 4),)), "without a budget"),
        (
            lambda: select_objectives((Goal("bits", "minimize"), Goal("bits", "minimize"))),
            "share a name",
        ),
        (lambda: Choice("a", [1, 2]), r"options by text, got \[1, 2\]"),
        (lambda: SearchSpace(Choice("a", {"1": 1})), "a tuple of choices"),
    ],
)
def test_wrong_problems_are_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_what_the_caller_gave_is_copied():
    options = {"a": 1}
    choice = Choice("x", options)
    options["b"] = 2
    assert choice.texts == ("a",)
    assert choice.options == {"a": 1}


def test_goals_know_their_side():
    assert Constraint("bits", 4).excess(5.0) == pytest.approx(1.0)
    assert Constraint("accuracy", 0.9, "maximize").excess(0.95) == pytest.approx(-0.05)
    assert (Goal("accuracy").loss(0.5), Goal("bits", "minimize").loss(3.0)) == (-0.5, 3.0)
    goals = (Goal("accuracy"), Constraint("bits", 4), Constraint("accuracy", 0.9, "maximize"))
    assert select_objectives(goals) == goals[:1] and select_constraints(goals) == goals[1:]
    stored = [
        ["accuracy", "maximize", None],
        ["bits", "minimize", 4],
        ["accuracy", "maximize", 0.9],
    ]
    assert goals_to_json(goals) == stored and goals_from_json(stored) == goals


def test_a_goal_survives_pickling_and_replacing():
    goal = Goal("accuracy", "maximize")
    assert goal == pickle.loads(pickle.dumps(goal)) == dataclasses.replace(goal, name="accuracy")


def test_a_budget_is_met_up_to_rounding():
    bits, accuracy = Constraint("bits", 0.3), Constraint("accuracy", 0.7, "maximize")
    assert 0.1 + 0.1 + 0.1 > 0.3 and bits.excess(0.1 + 0.1 + 0.1) <= 0
    assert accuracy.excess(1.0 - 0.1 - 0.1 - 0.1) <= 0
    assert bits.excess(0.3 + 1e-8) > 0 and accuracy.excess(0.7 - 1e-8) > 0
    assert Constraint("errors", 0).excess(1e-300) > 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (1.0, "returned 1.0, expected a mapping of names to numbers"),
        ({"bits": None}, "returned None for 'bits', expected a number"),
        ({"bits": 10**400}, "for 'bits', expected a number"),
        ({"bit": 1.0}, "no 'bits': did you mean 'bit'"),
        ({"bits": float("nan")}, "NaN for 'bits'"),
    ],
)
def test_what_is_no_number_is_named(values, message):
    with pytest.raises(ConfigError, match=message):
        check_values(values, (Goal("bits", "minimize"),))


def test_what_folds_may_decide_whether_another_choice_counts():
    choices = tuple(Choice(name, {"x": 0, "y": 1}) for name in "abc")

    def active(values):
        return {"a", *"b" * values["a"], *"c" * values["b"]}

    chain = SearchSpace(choices, active=active)
    off = {"a": "x", "b": "y", "c": "y"}
    assert chain.folded(off) == chain.at(0) and chain.key(off) == chain.key(chain.at(0))
    for config in chain.grid():
        assert chain.folded(chain.folded(config)) == chain.folded(config)
