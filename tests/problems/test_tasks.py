"""Searches judge a model by its task."""

import math

import pytest
import torch
from torch import nn

from chop.errors import ConfigError
from chop.problems.mixed_precision.layer_sensitivity import sensitivity
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.problems.nas.training import TrainedMeasure
from chop.train import TASKS, evaluate, fit, read_rows
from chop.train.evaluator import Evaluator
from chop.workloads.workload import Workload, raise_to_graph
from tests import workloads


@pytest.fixture(scope="module")
def text():
    return workloads.language()


@pytest.fixture(scope="module")
def line():
    torch.manual_seed(0)
    x = torch.randn(200, 6)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    y = x[:, 0] - x[:, 1]
    fit(model, (x, y), epochs=30, lr=2e-2)
    return Workload.of(model, (x[:150], y[:150]), (x[150:], y[150:]))


def test_an_evaluator_agrees_with_evaluate(text, line):
    for workload in (text, line):
        found = Evaluator(workload.model, workload.test, batch_size=3)
        assert found.task is workload.task
        value = found.scores(found.logits())[workload.task.metric.name]
        assert value == pytest.approx(evaluate(workload.model, workload.test), rel=1e-5)
    of_text, of_line = (Evaluator(workload.model, workload.test) for workload in (text, line))
    assert math.exp(of_text.scores(of_text.logits())["loss"]) == pytest.approx(
        evaluate(text.model, text.test), rel=1e-5
    )
    mse = evaluate(line.model, line.test, metric="mse")
    assert of_line.scores(of_line.logits())["loss"] == pytest.approx(mse)


def test_the_text_of_a_problem_has_a_divergence_for_each_token(text):
    found = PrecisionProblem(raise_to_graph(text), text.train, text.test, ranges={"width": (2, 8)})
    assert len(found.reference) == sum(len(ids) - 1 for ids in text.test.labels)
    rough, fine = (found.measure(found.uniform(o), lambda *_: None) for o in found.options)
    assert 0 <= fine["kl"] < rough["kl"] and fine["perplexity"] < rough["perplexity"]
    assert found.goal == "perplexity"


def test_numbers_have_no_divergence(line):
    mg = raise_to_graph(line)
    rows = sensitivity(mg, line.train, line.test, formats=("8.mse",))
    assert all(math.isnan(row["kl"]) and row["mse"] >= 0 for row in rows)
    assert all(row["fisher"] >= 0 and row["r2"] <= 1 for row in rows)
    with pytest.raises(ConfigError, match="goal: got 'kl': choose from: loss, r2"):
        PrecisionProblem(mg, line.train, line.test, goal="kl")


def test_trained_models_are_judged_by_their_task():
    x = torch.randn(60, 4)
    rows = read_rows((x, x.sum(1) + 0.5))
    measure = TrainedMeasure(
        lambda config: nn.Linear(4, 1), rows, rows, {"epochs": 1}, task=TASKS["regression"]
    )
    found = measure({}, lambda *_: None)
    assert found["r2"] == evaluate(measure.last, rows) and found["parameters"] == 5
