"""Heads of rotary decoders: queries that share keys and values leave together with them."""

import copy

import pytest
import torch
from torch import nn
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from chop import MaseGraph, passes
from chop.errors import ConfigError

from .conftest import with_metadata

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
IDS = torch.randint(3, 50, (3, 9), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def llama(groups, **settings):
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=groups, **settings))


DECODERS = {
    "groups": (lambda: llama(2), 2),
    "heads of their own": (lambda: llama(4, attention_bias=True), 4),
    "norms of heads": (
        lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=16)),
        2,
    ),
}


def pruned(model, sparsity=0.5):
    torch.manual_seed(0)
    example = {name: x[:2, :5] for name, x in BATCH.items()}
    mg = with_metadata(MaseGraph(model.eval(), dummy_in=example))
    rule = {"sparsity": sparsity, "method": "l2-norm", "granularity": "head"}
    return mg, *passes.prune_transform_pass(mg, {"weight": rule})


def without(model, small):
    """The model with zeros where its output projections read what has left."""
    silenced = copy.deepcopy(model)
    for number, layer in enumerate(silenced.model.layers):
        kept = small.modules[f"model.layers.{number}.self_attn.o_proj"].weight
        weight = layer.self_attn.o_proj.weight
        stays = (weight[:, :, None] == kept[:, None]).all(0).any(1)
        assert stays.sum() == kept.shape[1] < weight.shape[1]
        with torch.no_grad():
            weight[:, ~stays] = 0
    return silenced


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.sampled(1)
def test_groups_that_leave_are_as_good_as_zero(name, tmp_path):
    make, groups = DECODERS[name]
    torch.manual_seed(0)
    model = make()
    mg, small, info = pruned(model)
    assert info["hidden"] == groups and info["weights"] == 2 * groups and not info["skipped"]
    expected = without(model, small)
    torch.testing.assert_close(small.model(**BATCH)["logits"], expected(**BATCH).logits)
    config = small.model.config
    assert config.num_key_value_heads == groups // 2 and config.num_attention_heads == 2
    assert mg.model.config.num_attention_heads == model.config.num_attention_heads == 4
    given = {"max_new_tokens": 4, "do_sample": False, "min_new_tokens": 4}
    tokens = expected.generate(IDS[:1], **given)
    assert torch.equal(small.model.generate(IDS[:1], **given), tokens)
    fixed = {**given, "cache_implementation": "static"}
    assert torch.equal(small.model.generate(IDS[:1], **fixed), tokens)
    small.to_module().save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(**BATCH).logits, expected(**BATCH).logits)
    assert torch.equal(loaded.generate(IDS[:1], **given), tokens)


class Fixed(nn.Module):
    """Attention whose code has the number of heads, which pruning changes in the graph alone."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = (
            f(x).view(x.shape[0], -1, 4, 2).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


def test_a_module_that_would_not_follow_is_refused():
    model, x = Fixed().eval(), torch.randn(2, 3, 8)
    mg = MaseGraph(model, dummy_in={"x": x})
    rule = {"sparsity": 0.5, "method": "l2-norm", "granularity": "head"}
    small, info = passes.prune_transform_pass(mg, {"weight": rule})
    assert info["hidden"] == 2 and small.model(x).shape == x.shape
    with pytest.raises(ValueError, match="the arguments of 'view'"):
        small.to_module()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: llama(1), "all its heads share one key-value head"),
        (
            lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES)),
            "query_key_value' computes queries, keys and values together",
        ),
    ],
)
@pytest.mark.long
def test_what_keeps_its_heads_is_told_why(make, reason):
    _, _, info = pruned(make())
    assert info["hidden"] == 0 and len(info["skipped"]) == 2
    assert all(reason in text for text in info["skipped"].values())


@pytest.mark.long
def test_channels_and_heads_by_activations_leave_a_folder_that_transformers_loads(tmp_path):
    torch.manual_seed(0)
    mg = with_metadata(MaseGraph(llama(2).eval(), dummy_in=BATCH))
    weight = {"sparsity": 0.5, "method": "activation"}
    small, _ = passes.prune_transform_pass(
        mg,
        {
            "weight": {**weight, "granularity": "channel"},
            "include": [".*(gate|up)_proj"],
            "batches": [BATCH],
        },
    )
    small, _ = passes.prune_transform_pass(
        small, {"weight": {**weight, "granularity": "head"}, "batches": [BATCH]}
    )
    assert mg.model.record.config.intermediate_size == 24
    small.save_pretrained(tmp_path)
    again = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    assert again.config.intermediate_size == 12 and again.config.num_key_value_heads == 1
    torch.testing.assert_close(again(**BATCH).logits, small.model(**BATCH).logits)


@pytest.mark.long
def test_only_units_have_activations():
    with pytest.raises(ConfigError, match="choose granularity 'channel' or 'head'"):
        passes.prune_transform_pass(
            MaseGraph(llama(2).eval(), dummy_in=BATCH),
            {"weight": {"sparsity": 0.5, "method": "activation"}, "batches": [BATCH]},
        )
    with pytest.raises(ConfigError, match="pass 'batches'"):
        passes.prune_transform_pass(
            MaseGraph(llama(2).eval(), dummy_in=BATCH),
            {"weight": {"sparsity": 0.5, "method": "activation", "granularity": "head"}},
        )
