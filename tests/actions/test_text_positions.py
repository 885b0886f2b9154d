"""Lengths of texts beside the positions of a model."""

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    OPTConfig,
    OPTModel,
    RobertaConfig,
    RobertaModel,
)

from chop import MaseGraph
from chop.base.notices import collected_assumptions
from chop.errors import ConfigError
from chop.models.positions import check_positions
from chop.train import evaluate

SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 16,
    "max_position_embeddings": 12,
}
WIDE = {**SIZES, "intermediate_size": 8}
LENGTHS = {
    "bert": (BertModel, BertConfig(**WIDE), 12),
    "roberta": (RobertaModel, RobertaConfig(**WIDE, pad_token_id=1), 10),
    "opt": (OPTModel, OPTConfig(**SIZES, ffn_dim=8, word_embed_proj_dim=8), 12),
}


@pytest.mark.parametrize("name", LENGTHS)
@torch.no_grad()
def test_the_longest_text_is_the_longest_that_the_model_computes(name):
    cls, config, longest = LENGTHS[name]
    model = cls(config).eval()
    check_positions(longest, model)
    model(input_ids=torch.full((1, longest), 5))
    with pytest.raises(ConfigError, match=f"max_length: got {longest + 1} .* at most {longest}"):
        check_positions(longest + 1, model)
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, longest + 1), 5))


def test_texts_beyond_rotary_positions_are_an_assumption():
    model = LlamaModel(LlamaConfig(**WIDE))
    with collected_assumptions() as assumed:
        check_positions(12, model)
        assert not assumed
        check_positions(13, model)
    assert "13 tokens" in assumed[0].text


@pytest.mark.parametrize(("length", "count"), [(12, 0), (13, 1)])
def test_evaluate_warns_of_rows_beyond_rotary_positions(length, count, caplog):
    model = LlamaForCausalLM(LlamaConfig(**WIDE))
    evaluate(model, {"input_ids": torch.full((2, length), 5)}, task="causal-lm")
    assert caplog.text.count("up to 13 tokens, and the model has 12 positions") == count


def test_tokens_read_after_a_text_need_positions_as_well():
    model = BertModel(BertConfig(**WIDE))
    check_positions(11, model, "prompt", generated=1)
    with pytest.raises(ConfigError, match="prompt: got 12 tokens and 1 more, .* use at most 11"):
        check_positions(12, model, "prompt", generated=1)


def test_the_graph_of_a_model_has_its_positions():
    config = BertConfig(**{**WIDE, "vocab_size": 24, "max_position_embeddings": 24})
    mg = MaseGraph(BertModel(config).eval(), hf_input_names=["input_ids"])
    check_positions(24, mg.model, "length")
    with pytest.raises(ConfigError, match="length: got 25 tokens, .* use at most 24"):
        check_positions(25, mg.model, "length")


@pytest.mark.parametrize("config", [{"max_position_embeddings": 4}, None])
def test_a_configuration_of_one_s_own_has_no_positions(config):
    model = nn.Linear(2, 2)
    model.config = config
    check_positions(5, model)
