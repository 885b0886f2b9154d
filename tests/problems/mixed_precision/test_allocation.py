"""The integer program against every configuration, tried one by one."""

import math
import random

import pytest
import torch

from chop.errors import ConfigError
from chop.problems.mixed_precision.allocation import Allocation
from chop.problems.mixed_precision.fisher import fisher_loss_increases
from chop.problems.mixed_precision.layer_sensitivity import gradient_rows
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.problems.mixed_precision.warm_start import measured_loss_increases
from chop.search import Constraint, Goal
from chop.search.objective import select_constraints
from tests.workloads import graph, rows

KL = Goal("kl", "minimize")


def problem(mg=None, **settings):
    settings = {"ranges": {"width": (2, 4, 8)}, "per": "operand", **settings}
    return PrecisionProblem(mg or graph(), *rows(), **settings)


def tied():
    """Two layers share a weight."""
    mg = graph()
    mg.model.dead.weight = torch.nn.Parameter(mg.model.first.weight.detach()[:, :1].repeat(1, 24))
    mg.model.last.weight, mg.model.last.bias = mg.model.dead.weight, mg.model.dead.bias
    return mg


def drawn(found, seed):
    draw = random.Random(seed)
    return {pair: draw.random() for pair in found.pairs}


def least(found, loss_increases, goals):
    """By trying all configurations: the total loss increase of the best one."""
    totals = [math.inf]
    for config in found.space.grid():
        costs = found.costs(found.formats(config))
        if all(limit.excess(costs[limit.name]) <= 0 for limit in select_constraints(goals)):
            totals.append(sum(loss_increases[pair] for pair in config.items()))
    return min(totals)


@pytest.mark.parametrize("mg", [graph, tied], ids=["own weights", "a shared weight"])
@pytest.mark.parametrize(
    "budgets",
    [
        {},
        {"bits": 4.5},
        {"bytes": 480},
        {"activation_bits": 3.5},
        {"bits": 5, "activation_bits": 4},
        {"bit_operations": 20_000},
        {"bit_operations": 30_000, "bits": 4},
    ],
    ids=str,
)
@pytest.mark.sampled(2)
def test_nothing_within_the_budgets_has_less_loss(mg, budgets):
    found = problem(mg())
    goals = [KL, *(Constraint(name, most) for name, most in budgets.items())]
    for seed in range(3):
        loss_increases = drawn(found, seed)
        config = Allocation(found, goals).solve(loss_increases)
        costs = found.costs(found.formats(config))
        assert all(costs[name] <= most * (1 + 1e-9) for name, most in budgets.items())
        total = sum(loss_increases[pair] for pair in config.items())
        assert total == pytest.approx(least(found, loss_increases, goals))


def test_a_budget_may_be_the_least_that_a_cost_may_be():
    found = problem()
    goals, loss_increases = [KL, Constraint("bits", 5.0, "maximize")], drawn(found, 0)
    config = Allocation(found, goals).solve(loss_increases)
    assert found.costs(found.formats(config))["bits"] >= 5
    assert sum(loss_increases[p] for p in config.items()) == pytest.approx(
        least(found, loss_increases, goals)
    )
    with pytest.raises(ConfigError, match="bits=9 cannot be met: with the largest .* it is 8"):
        Allocation(found, [KL, Constraint("bits", 9.0, "maximize")])


def test_a_budget_that_one_option_meets_leaves_it_alone():
    found = problem(operands=("weight",), bias="float")
    smallest = found.costs(found.formats(found.uniform("2.mse")))["bits"]
    for loss_increases in (drawn(found, 0), dict.fromkeys(found.pairs, 0.0)):
        config = Allocation(found, [KL, Constraint("bits", smallest)]).solve(loss_increases)
        assert config == found.uniform("2.mse")
    with pytest.raises(ConfigError, match="cannot be met: with the smallest"):
        Allocation(found, [KL, Constraint("bits", smallest - 0.01)])


def test_budgets_that_can_only_be_kept_one_by_one_leave_nothing():
    found = problem(per="layer")
    goals = [KL, Constraint("bits", 3.0), Constraint("activation_bits", 6.0, "maximize")]
    assert least(found, drawn(found, 0), goals) == math.inf
    assert Allocation(found, goals).solve(drawn(found, 0)) is None


def test_loss_increases_that_are_no_numbers_are_avoided():
    found = problem()
    loss_increases = drawn(found, 0)
    loss_increases |= {("first.weight", "8.mse"): math.nan, ("last.weight", "2.mse"): math.inf}
    config = Allocation(found, [KL]).solve(loss_increases)
    assert config["first.weight"] != "8.mse" and config["last.weight"] != "2.mse"
    assert Allocation(found, [KL]).solve(dict.fromkeys(found.pairs, math.nan)) is None


def test_too_many_ways_are_not_tried(monkeypatch):
    monkeypatch.setattr("chop.problems.mixed_precision.allocation.MAX_COMBINATIONS", 8)
    found = problem()
    goals = [KL, Constraint("bit_operations", 1.0)]
    assert Allocation(found, goals).solve(drawn(found, 0)) is None
    assert Allocation(found, [KL, Constraint("bits", 4.0)]).solve(drawn(found, 0)) is not None


def test_real_loss_increases_give_less_divergence_than_one_width():
    found = problem(ranges={"width": (2, 3, 4, 5, 6, 8)})
    most = found.costs(found.formats(found.uniform("3.mse")))
    goals = [KL, Constraint("bits", most["bits"]), Constraint("activation_bits", 3.0)]
    uniform = found.score(found.formats(found.uniform("3.mse")))["kl"]
    part = found.evaluator.part(0.5)
    assert len(part) == 192 and len(found.evaluator) == 400
    for loss_increases in (
        fisher_loss_increases(found, gradient_rows(found, rows()[0])),
        measured_loss_increases(found, part),
    ):
        config = Allocation(found, goals).solve(loss_increases)
        assert found.score(found.formats(config))["kl"] < 0.8 * uniform


def test_measured_loss_increases_are_those_of_each_option_alone():
    found = problem()
    loss_increases = measured_loss_increases(found, found.evaluator)
    for pair in (("first.weight", "2.mse"), ("last.data_in", "4.mse")):
        assert loss_increases[pair] == pytest.approx(found.score(found.only(*pair))["kl"], rel=1e-6)
    assert found.score({})["kl"] == pytest.approx(0, abs=1e-6)
