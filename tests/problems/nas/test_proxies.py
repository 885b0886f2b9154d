"""Zero-cost scores against their definitions, and the filter made of them."""

import itertools
import math

import pytest
import torch
from torch import nn

from chop.errors import ConfigError
from chop.models import load_model
from chop.problems.nas.proxies import PROXIES, best_share, zero_cost_score
from chop.search import Choice, SearchSpace


def mlp(*widths):
    pairs = list(itertools.pairwise(widths))
    layers = [layer for i, o in pairs for layer in (nn.Linear(i, o, bias=False), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


@pytest.fixture
def batch():
    return {"x": torch.randn(6, 5), "labels": torch.tensor([0, 1, 2, 0, 1, 2])}


BUILT_IN = {
    "vit": lambda: {"pixel_values": torch.rand(4, 1, 8, 8)},
    "cnn": lambda: {"pixel_values": torch.rand(4, 1, 8, 8)},
    "bert-tiny": lambda: {
        "input_ids": torch.randint(0, 512, (4, 9)),
        "attention_mask": torch.ones(4, 9, dtype=torch.long),
    },
}


@pytest.mark.sampled(11)
@pytest.mark.parametrize("name", PROXIES)
@pytest.mark.parametrize("model_name", BUILT_IN)
def test_every_score_of_every_kind_of_model(name, model_name):
    model = load_model(model_name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    batch = {**BUILT_IN[model_name](), "labels": torch.tensor([0, 1, 0, 1])}
    score = zero_cost_score(name, model, batch)
    assert math.isfinite(score)
    torch.rand(3)
    assert zero_cost_score(name, model, batch) == score
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not model.training and not any(m._forward_hooks for m in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradient_scores_by_hand(batch):
    model = mlp(5, 3)
    logits = batch["x"] @ model[0].weight.T
    error = logits.softmax(1) - nn.functional.one_hot(batch["labels"], 3)
    gradient = error.T @ batch["x"] / 6
    assert zero_cost_score("grad-norm", model, batch) == pytest.approx(gradient.norm().item())
    saliency = (gradient * model[0].weight).abs().sum().item()
    assert zero_cost_score("snip", model, batch) == pytest.approx(saliency, rel=1e-5)
    assert zero_cost_score("parameters", model, batch) == 15


def test_synflow_counts_the_flow_once_per_layer(batch):
    model = mlp(5, 7, 4, 3)
    first, second, third = (model[i].weight.abs().double() for i in (0, 2, 4))
    flow = (third @ second @ first @ torch.ones(5, dtype=torch.float64)).sum()
    assert zero_cost_score("synflow", model, batch) == pytest.approx(math.log(3 * flow.item()))
    normed = nn.Sequential(*list(model[:2]), nn.LayerNorm(7, elementwise_affine=False), *model[2:])
    assert zero_cost_score("synflow", normed, batch) == pytest.approx(math.log(3 * flow.item()))


def test_naswot_compares_signs_of_rows(batch):
    model = mlp(5, 8, 3)
    signs = model[0](batch["x"]) > 0
    agree = [[(a == b).sum().item() for b in signs] for a in signs]
    expected = torch.tensor(agree, dtype=torch.float64).logdet().item()
    assert zero_cost_score("naswot", model, batch) == pytest.approx(expected)
    same = {**batch, "x": batch["x"][:1].expand(6, 5).clone()}
    assert zero_cost_score("naswot", model, same) < expected - 10
    with pytest.raises(ConfigError, match="naswot: the model has no activation"):
        zero_cost_score("naswot", mlp(5, 3), batch)


def test_jacobians_that_agree_score_least(batch):
    linear = zero_cost_score("jacobian-covariance", mlp(5, 3), batch)
    # Of a linear model all gradients are one: its correlations are all 1, eigenvalues 6 and 0.
    values = torch.tensor([6.0, 0, 0, 0, 0, 0], dtype=torch.float64) + 1e-5
    assert linear == pytest.approx(-(values.log() + 1 / values).sum().item(), rel=1e-3)
    assert zero_cost_score("jacobian-covariance", mlp(5, 64, 64, 3), batch) > linear


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


def test_zen_grows_with_depth_and_norms_hide_no_scale(batch):
    scores = [zero_cost_score("zen", mlp(5, *[32] * depth, 3), batch) for depth in (1, 2, 4)]
    assert scores == sorted(scores)
    first, *rest = mlp(5, 32, 3)
    norms = nn.BatchNorm1d(32, affine=False), nn.LayerNorm(32, elementwise_affine=False)
    for norm in (nn.Identity(), *norms):
        one, ten = (nn.Sequential(first, Times(factor), norm, *rest) for factor in (1, 10))
        difference = zero_cost_score("zen", ten, batch) - zero_cost_score("zen", one, batch)
        assert difference == pytest.approx(math.log(10), abs=1e-3)


def test_a_misspelt_score_names_the_nearest(batch):
    with pytest.raises(ConfigError, match="did you mean 'naswot'"):
        zero_cost_score("nasswot", mlp(5, 3), batch)
    broken = mlp(5, 3)
    nn.init.constant_(broken[0].weight, math.nan)
    assert zero_cost_score("snip", broken, batch) == -math.inf


def test_the_best_share_passes_and_is_scored_once():
    digits = {str(i): i for i in range(10)}
    rule = lambda v: "odd" if v["b"] % 2 else None  # noqa: E731
    space = SearchSpace((Choice("a", digits), Choice("b", digits)), rule)
    asked = []

    def score(config):
        asked.append(tuple(config.values()))
        return float(config["a"])

    small = best_share(space, score, share=0.2, sample=50)
    passed = [config for config in small.grid() if small.why_infeasible(config) is None]
    assert {config["a"] for config in passed} == {"8", "9"} and len(passed) == 10
    assert len(asked) == len(set(asked)) == 50
    assert small.why_infeasible({"a": "9", "b": "1"}) == "odd"
    assert "scores 1, below 8" in small.why_infeasible({"a": "1", "b": "2"})
    again = best_share(space, score, share=0.2, sample=50)
    assert [c for c in again.grid() if again.why_infeasible(c) is None] == passed
    assert space.why_infeasible({"a": "1", "b": "2"}) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"share": 0.0}, "share: got 0.0"), ({"share": 2}, "share: got 2"), ({}, "is feasible")],
)
def test_what_cannot_be_filtered(settings, message):
    space = SearchSpace((Choice("a", {"1": 1}),), lambda v: "never")
    with pytest.raises(ConfigError, match=message):
        best_share(space, lambda config: 0.0, sample=4, **settings)
