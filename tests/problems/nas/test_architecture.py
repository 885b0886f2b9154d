"""The architectures that a configuration can become: names, combinations, and which are one."""

import itertools

import optuna
import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from chop.errors import ConfigError
from chop.models import load_model
from chop.nn.identity import Identity as OwnIdentity
from chop.nn.modules import Identity
from chop.problems.nas.architecture import SQUARE_LAYERS, Architectures, by_name, suggest_by_name
from tests.connections import optuna_storage


@pytest.fixture(scope="module")
def bert():
    config = BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
    )
    return BertForSequenceClassification(config)


def describe(model):
    """Layers, sizes and heads, told independently of the space."""
    layers = [
        (name, type(m).__name__, tuple(getattr(m, "weight", torch.empty(0)).shape))
        for name, m in model.named_modules()
        if not list(m.children())
    ]
    return (*layers, model.config.num_attention_heads)


@pytest.mark.long
def test_settings_that_give_one_model_have_one_key(bert):
    fields = {
        "num_hidden_layers": [1, 2],
        "num_attention_heads": [2, 3],
        "hidden_size": [4, 6],
        "intermediate_size": [4],
    }
    layers = dict(itertools.islice(SQUARE_LAYERS.items(), 2))
    found = Architectures(bert, fields, square_layers=layers)
    names = [choice.name for choice in found.space.choices]
    assert names[4:11] == [
        *(f"bert.encoder.layer.0.attention.self.{x}" for x in ("query", "key", "value")),
        "bert.encoder.layer.0.attention.output.dense",
        "bert.encoder.layer.0.intermediate.dense",
        "bert.encoder.layer.0.output.dense",
        "bert.encoder.layer.1.attention.self.query",
    ]
    assert len(names) == 4 + 13 and found.space.size == 8 * 2**13
    by_key = {}
    for index in range(0, found.space.size, 37):
        config = found.space.at(index)
        if found.space.why_infeasible(config) is None:
            by_key.setdefault(found.space.key(config), []).append(config)
    pairs = [same[:2] for same in by_key.values() if len(same) > 1]
    assert len(pairs) > 20
    for one, other in pairs[:20]:
        assert one != other and describe(found.build(one)) == describe(found.build(other))
    firsts = [same[0] for same in by_key.values()][:60]
    assert len({describe(found.build(config)) for config in firsts}) == len(firsts)


def test_different_architectures_are_counted(bert):
    fields = {"num_hidden_layers": [1, 2], "num_attention_heads": [2, 3], "hidden_size": [4, 6]}
    found = Architectures(bert, fields)
    # Four square layers in each block, one in the pooler; 3 heads do not divide 4.
    assert found.num_distinct() == 3 * (2**5 + 2**9)
    keys = {found.space.key(c) for c in found.space.grid() if found.space.why_infeasible(c) is None}
    assert len(keys) == found.num_distinct()


def test_misnamed_fields_name_the_nearest(bert):
    for wrong, right in {
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "hidden_sise": "hidden_size",
        "hidden": "hidden_size",
    }.items():
        with pytest.raises(ConfigError, match=f"no field '{wrong}': did you mean '{right}'"):
            Architectures(bert, {wrong: [2, 4]})
    with pytest.raises(ConfigError, match="hidden_size: expected int, such as 16, got '8'"):
        Architectures(bert, {"hidden_size": ["8"]})
    with pytest.raises(ConfigError, match="expected a list of values, got 8"):
        Architectures(bert, {"hidden_size": 8})
    with pytest.raises(ConfigError, match="Linear has no Hugging Face configuration"):
        Architectures(nn.Linear(2, 2), {"hidden_size": [8]})


def test_aliases_are_the_fields_that_they_stand_for():
    config = GPT2Config(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=2, num_labels=2)
    model = GPT2ForSequenceClassification(config)
    found = Architectures(model, {"hidden_size": [8, 16], "n_layer": [1, 2]})
    assert [choice.name for choice in found.space.choices] == ["n_embd", "n_layer"]
    assert found.build({"n_embd": "16", "n_layer": "2"}).transformer.h[1].attn.embed_dim == 16
    with pytest.raises(ConfigError, match="is an alias of 'n_embd'"):
        Architectures(model, {"hidden_size": [8], "n_embd": [8]})


def test_impossible_combinations_never_reach_training(bert):
    vit = Architectures(load_model("vit"), {"hidden_size": [24, 50], "num_attention_heads": [4]})
    bad = {c.name: c.texts[-1] for c in vit.space.choices}
    reason = vit.space.why_infeasible({**bad, "num_attention_heads": "4"})
    assert reason == "hidden size 50 is not divisible by 4 attention heads"
    with pytest.raises(ConfigError, match="this architecture is infeasible: hidden size 50"):
        vit.build(bad)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(lambda trial: vit.build(vit.space.suggest(trial)).num_labels, n_trials=6)
    assert {trial.state.name for trial in study.trials} == {"COMPLETE", "PRUNED"}

    llama = LlamaForSequenceClassification(
        LlamaConfig(
            vocab_size=40,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            pad_token_id=0,
        )
    )
    grouped = Architectures(llama, {"num_key_value_heads": [2, 3]}, square_layers={})
    assert grouped.space.why_infeasible({"num_key_value_heads": "2"}) is None
    assert "not divisible by 3 key-value" in grouped.space.why_infeasible(
        {"num_key_value_heads": "3"}
    )

    wide = lambda v: "too wide" if v["hidden_size"] > 16 else None  # noqa: E731
    ruled = Architectures(bert, {"hidden_size": [16, 32]}, square_layers={}, infeasible=wide)
    obstacles = [ruled.space.why_infeasible({"hidden_size": size}) for size in ("16", "32")]
    assert obstacles == [None, "too wide"]


def test_models_are_built_as_said_and_alike_each_time(bert):
    found = Architectures(bert, {"hidden_size": [8, 16], "num_attention_heads": [2, 4]}, seed=3)
    config = {choice.name: choice.texts[0] for choice in found.space.choices}
    config["bert.encoder.layer.0.attention.self.query"] = "Identity"
    before = torch.get_rng_state()
    model, again = found.build(config), found.build(config)
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(model.bert.encoder.layer[0].attention.self.query, OwnIdentity)
    assert type(model.bert.encoder.layer[0].attention.self.key) is nn.Linear
    assert model.config.hidden_size == 8 and model.num_labels == 3 and not model.training
    weights = zip(model.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
    assert bert.config.hidden_size == 16
    logits = model(input_ids=torch.ones(2, 5, dtype=torch.long)).logits
    assert logits.shape == (2, 3) and logits.isfinite().all()


@pytest.mark.long
def test_classes_are_stored_by_name(tmp_path):
    assert by_name([nn.Linear, Identity, 8, "text"]) == {
        "Linear": nn.Linear,
        "Identity": Identity,
        "8": 8,
        "text": "text",
    }
    with pytest.raises(ConfigError, match="two options are named 'Identity'"):
        by_name([nn.Identity, Identity])
    taken = []

    def objective(trial):
        layer = suggest_by_name(trial, "layer", [nn.Linear, Identity])
        kind = suggest_by_name(trial, "kind", {"own": OwnIdentity, "torch": nn.Identity})
        taken.append((layer, kind))
        return 0.0

    with optuna_storage(tmp_path / "study.db") as storage:
        optuna.create_study(storage=storage, study_name="s").optimize(objective, n_trials=4)
    with optuna_storage(tmp_path / "study.db") as storage:
        stored = optuna.load_study(storage=storage, study_name="s").trials
    names = [(trial.params["layer"], trial.params["kind"]) for trial in stored]
    kinds = {OwnIdentity: "own", nn.Identity: "torch"}
    assert names == [(layer.__name__, kinds[kind]) for layer, kind in taken]
