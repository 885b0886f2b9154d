"""Judges: what a function of the user's may give, and how it is called."""

import copy
import dataclasses
import functools
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.base.notices import collected_assumptions
from chop.errors import ConfigError
from chop.statistics.intervals import wilson
from chop.train import Judge, fit
from chop.train.judge import checked_loss
from chop.train.tasks import JUDGED_TASK


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.drop = nn.Linear(4, 3), nn.Dropout(0.5)

    def forward(self, x):
        h = self.drop(self.body(x))
        return {"a": h, "b": h.sum(1)}


def judged(value):
    return Judge.of(lambda model: value).score(Two())


@pytest.mark.parametrize(
    "value", [0.5, np.float32(0.5), torch.tensor(0.5), np.array(0.5), torch.tensor(0.5).half()]
)
def test_one_number_has_no_interval(value):
    score = judged(value)
    assert (score.value, score.interval, score.rows, score.constant) == (0.5, None, 0, None)
    assert judged(3).value == 3.0


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_numbers_of_rows_have_the_interval_of_their_mean(kind):
    values = np.random.default_rng(0).normal(2.0, 1.0, 400)
    score = judged(kind(values.tolist()))
    assert score.value == pytest.approx(values.mean(), rel=1e-6) and score.rows == 400
    low, high = score.interval
    half = 1.96 * values.std() / math.sqrt(400)
    assert low == pytest.approx(values.mean() - half, abs=0.2 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.2 * half)


def test_rows_that_are_right_or_wrong_are_a_share():
    score = judged([True, True, False, True])
    assert score.value == 0.75 and score.interval == wilson(3, 4)


@pytest.mark.parametrize(
    "value", [None, "0.5", True, {"map": 0.5}, 1j, [], [[0.5]], [0.5, None], (0.5, 400)]
)
def test_what_is_no_number_is_one_sentence(value):
    with pytest.raises(ConfigError, match=r"^evaluate 'score': returned .*, expected a number"):
        judged(value)


def test_each_call_draws_the_same_rows_and_leaves_the_generators_as_they_were():
    drawn = []

    def draw(model):
        drawn.append((float(torch.rand(())), random.random(), float(np.random.rand())))
        return 0.0

    judge, model = Judge.of(draw), Two()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    judge.score(model), judge.score(model)
    assert drawn[0] == drawn[1]
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]


def test_nan_is_a_number_without_an_interval():
    assert math.isnan(judged(math.nan).value) and judged([1.0, math.nan]).interval is None


def test_the_function_sees_the_class_in_evaluation_mode_without_gradients():
    seen = []

    def look(model):
        out = model(torch.ones(2, 4))["b"]
        seen.append((type(model), model.training, model.drop.training, out.requires_grad))
        return out

    model = Two().train()
    graph = MaseGraph(model, dummy_in={"x": torch.ones(3, 4)}).model.train()
    for each in (model, graph):
        Judge.of(look).score(each)
        assert each.training
    assert seen == [(Two, False, False, False)] * 2


@pytest.mark.parametrize("calls", [True, False])
def test_a_function_of_another_model_is_an_assumption(calls):
    other = nn.Linear(2, 2)

    def fit_of_other(model):
        return float((copy.deepcopy(model) if calls else other)(torch.ones(1, 2)).sum())

    with collected_assumptions() as assumed:
        Judge.of(fit_of_other).score(nn.Linear(2, 2))
    assert ["did not call the model" in each.text for each in assumed] == [True] * (not calls)


def test_what_the_function_raises_has_its_line():
    def broken(model):
        raise KeyError("boxes")

    with pytest.raises(ConfigError, match=r"^evaluate 'broken': line \d+, .*raises KeyError: 'box"):
        Judge.of(broken).score(Two())


@pytest.mark.parametrize("function", [3, Two(), Two, lambda: 0.5, lambda model, data: 0.5])
def test_what_is_no_function_of_a_model_is_refused(function):
    with pytest.raises(ConfigError, match="^evaluate: "):
        Judge.of(function)


def test_names():
    def closeness(model, scale=2):
        return scale

    class Scorer:
        def __call__(self, model):
            return 1

    named = functools.partial(closeness, scale=3)
    names = [Judge.of(each).name for each in (closeness, named, Scorer(), lambda model: 1)]
    assert names == ["closeness", "closeness", "Scorer", "score"]
    assert Judge.of(closeness, "map50").name == "map50"


@pytest.mark.parametrize("reference", [20.0, -20.0])
def test_a_drop_is_a_share_of_the_number(reference):
    for lower in (False, True):
        metric = Judge.of(lambda model: 0, lower_is_better=lower).metric
        worse = 0.19 if lower else -0.19
        assert metric.within(reference + worse, reference, 0.01)
        assert not metric.within(reference + 2 * worse, reference, 0.01)
        assert metric.drop(reference + 2 * worse, reference) == pytest.approx(0.019)
        assert metric.format_drop(0.019) == "1.90%"
        assert not metric.within(math.nan, reference, 0.01)


def test_a_loss_of_the_user_trains_what_the_model_returns():
    torch.manual_seed(0)
    model, x = Two(), torch.randn(64, 4)
    y = torch.stack([x[:, 0], x[:, 1], x[:, 2]], 1)

    def loss(output, labels):
        return nn.functional.mse_loss(output["a"], labels)

    task = dataclasses.replace(JUDGED_TASK, output_loss=checked_loss(loss))
    losses = fit(model, (x, y), epochs=5, lr=1e-2, task=task)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda out, y: out["a"], r"returned a Tensor of shape \[\d+, 3\]"),
        (lambda out, y: 0.5, "returned 0.5, expected one number with a gradient"),
        (lambda out, y: out["a"].sum().detach(), "returned a Tensor"),
        (lambda out, y: out["c"], "raises KeyError: 'c'"),
    ],
)
def test_a_wrong_loss_is_one_sentence(loss, message):
    task = dataclasses.replace(JUDGED_TASK, output_loss=checked_loss(loss))
    with pytest.raises(ConfigError, match=message):
        fit(Two(), (torch.randn(8, 4), torch.randn(8, 3)), task=task)


def test_a_loss_takes_output_and_labels():
    with pytest.raises(ConfigError, match="^loss: 'score' must be callable with only"):
        checked_loss(lambda output: output)


def test_logits_are_no_log_probabilities():
    logits, labels = torch.randn(6, 3, requires_grad=True), torch.arange(6) % 3
    for loss in (nn.NLLLoss(), nn.functional.nll_loss):
        with pytest.raises(ConfigError, match="takes log-probabilities.*CrossEntropyLoss"):
            checked_loss(loss)(logits, labels)
        value = checked_loss(loss)(logits.log_softmax(1), labels)
        assert value.item() == pytest.approx(nn.functional.cross_entropy(logits, labels).item())


def test_a_loss_does_not_compare_each_output_with_all_labels():
    output, labels = torch.randn(6, 1, requires_grad=True), torch.randn(6)
    for difference in (
        lambda o, y: o - y,
        lambda o, y: y.sub(o),
        torch.nn.functional.smooth_l1_loss,
    ):
        with pytest.raises(ConfigError, match="output.squeeze|Using a target size"):
            checked_loss(lambda o, y, way=difference: way(o, y).square().mean())(output, labels)
    fits = checked_loss(lambda o, y: (o.squeeze(1) - y).square().mean())
    assert fits(output, labels) == checked_loss(nn.MSELoss())(output, labels[:, None])
    ranked = checked_loss(lambda o, y: (o - o.T + y[:, None] - y).square().mean())
    assert ranked(output, labels).dim() == 0


def test_a_loss_is_a_module_too():
    logits, labels = torch.randn(6, 3, requires_grad=True), torch.arange(6) % 3
    loss = checked_loss(nn.CrossEntropyLoss())(logits, labels)
    assert torch.equal(loss, nn.functional.cross_entropy(logits, labels))
    with pytest.raises(ConfigError, match=r"got the class BCELoss; pass an instance, BCELoss\(\)"):
        checked_loss(nn.BCELoss)
    with pytest.raises(ConfigError, match="'Two' must be callable with only the model's output"):
        checked_loss(Two())
    for broadcasts in (nn.MSELoss(), nn.functional.mse_loss):
        with pytest.raises(ConfigError, match="Using a target size .* is different to the input"):
            checked_loss(broadcasts)(logits[:, :1], labels.float())
