"""Shapes of a tiny Llama: an exact budget, and the optimum of all shapes within it."""

import itertools

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from chop.errors import ConfigError
from chop.problems.shape import ShapeProblem
from chop.pruning.decoder.prune import prune_decoder
from chop.search import Constraint, Goal, Search
from chop.search.objective import NotANumberError
from chop.train import find_task, read_rows

CONFIG = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GIVEN = {
    "num_hidden_layers": (2, 3),
    "intermediate_size": (48, 64),
    "num_key_value_heads": (1, 2),
    "hidden_size": (28, 32),
}
TASK = find_task("causal-lm")
IDS = torch.randint(3, 64, (12, 9), generator=torch.Generator().manual_seed(0))
TEXTS = [{"input_ids": IDS[:6]}]
ROWS = read_rows({"input_ids": IDS[6:], "labels": IDS[6:]}, TASK)


def llama():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG)).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2)
    return model


def problem(model, given=GIVEN, share=0.88, least_share=0.8):
    budget = int(share * model.num_parameters())
    least = int(least_share * budget)
    return ShapeProblem(model, TEXTS, ROWS, given, budget=budget, least=least, task=TASK)


@pytest.fixture(scope="module")
def subject():
    return problem(llama())


def divergence(model, pruned):
    """Mean KL divergence of the answers from the original's, in numpy's float64."""
    with torch.no_grad():
        logits = [m(IDS[6:]).logits[:, :-1].double().numpy() for m in (model, pruned)]
    p, q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in logits)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def count_by_hand(sizes):
    """Parameters of a Llama of these sizes, which nobody has pruned."""
    shape = dict(zip(GIVEN, sizes, strict=True))
    heads = 2 * shape["num_key_value_heads"]
    with torch.device("meta"):
        config = LlamaConfig(**{**CONFIG, **shape, "num_attention_heads": heads})
        return LlamaForCausalLM(config).num_parameters()


@pytest.mark.long
def test_a_search_measures_all_shapes_within_the_budget_and_finds_the_best(subject):
    model = subject.ranked.model
    goals = Goal("kl", "minimize"), Constraint("parameters", subject.budget)
    search = Search(subject.space, subject.measure, goals, storage="memory")
    result = search.run(until=100, progress=False)
    counts = {sizes: count_by_hand(sizes) for sizes in itertools.product(*GIVEN.values())}
    within = {x for x, count in counts.items() if subject.least <= count <= subject.budget}
    measured = {
        tuple(subject.space.values(trial.config).values()): trial.values
        for trial in result.measured
    }
    assert measured.keys() == within and 2 < len(within) < len(counts)
    divergences = {}
    for sizes, values in measured.items():
        pruned = prune_decoder(model, TEXTS, **dict(zip(GIVEN, sizes, strict=True)))
        divergences[sizes] = divergence(model, pruned.model)
        assert values["parameters"] == counts[sizes]
        assert values["kl"] == pytest.approx(divergences[sizes], rel=1e-4)
    best = tuple(subject.space.values(result.best.config).values())
    assert best == min(divergences, key=divergences.get)


@pytest.mark.long
def test_defaults_include_the_largest_size_that_meets_the_budget_alone():
    model = llama()
    subject = problem(model, {}, share=0.8)
    options = {each.name: [*each.options.values()] for each in subject.space.choices}
    assert {16, 20, 24, 28, 32} <= {*options["hidden_size"]}
    assert options["num_key_value_heads"] == [1, 2] and options["num_hidden_layers"] == [2, 3]
    for field, shape in subject.single_sizes().items():
        size, step = shape[field], 8 if field in ("intermediate_size", "hidden_size") else 1
        count = prune_decoder(model, TEXTS, **shape).model.num_parameters()
        assert count <= subject.budget and size in options[field]
        larger = prune_decoder(model, TEXTS, **{field: size + step}).model
        assert larger.num_parameters() > subject.budget
    starts = subject.starts()
    assert starts and all(map(subject.space.is_feasible, starts))
    for config in starts:
        values = subject.space.values(config)
        assert sum(size != CONFIG[field] for field, size in values.items()) == 1


def test_fields_that_a_model_cannot_be_pruned_in_are_omitted_unless_given():
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(Gemma2Config(**CONFIG, sliding_window=4)).eval()
    subject = problem(model, {}, share=0.8)
    assert subject.omitted.keys() == {"hidden_size"}
    assert "hidden_size" not in subject.space.by_name
    with pytest.raises(ConfigError, match="hidden_size"):
        problem(model, {"hidden_size": (24, 32)})


def test_refusals():
    model = llama()
    with pytest.raises(ConfigError, match="expected numbers from 1 to 3, the model's, got 4"):
        problem(model, {"num_hidden_layers": (2, 4)})
    with pytest.raises(ConfigError, match="all given sizes are the model's"):
        problem(model, {field: (CONFIG[field],) for field in GIVEN})
    with pytest.raises(ConfigError, match="nearest has intermediate_size 48: 27,360 param"):
        fixed = {field: (CONFIG[field],) for field in GIVEN}
        problem(model, {**fixed, "intermediate_size": (48, 64)}, share=0.5)
    with pytest.raises(ConfigError, match="expected a budget below"):
        problem(model, share=1)


def test_a_shape_that_cannot_be_pruned_fails_alone(subject, monkeypatch):
    def refuse(sizes):
        raise ConfigError("cannot be reduced.")

    monkeypatch.setattr(subject.ranked, "prune", refuse)
    config = next(filter(subject.space.is_feasible, subject.space.grid()))
    with pytest.raises(NotANumberError, match="cannot be reduced"):
        subject.measure(config, print)
