"""Token IDs beyond the embeddings of a model."""

import pytest
import torch
from datasets import Dataset, DatasetDict
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

import chop
from chop.errors import ConfigError
from chop.train import evaluate, fit, get_trainer, predict
from chop.train.token_ids import check_token_ids

SIZES = {
    "vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 8, "max_position_embeddings": 16,
}  # fmt: skip
IDS = torch.arange(1, 33).reshape(8, 4)
LABELS = torch.arange(8) % 2
LATE = torch.where(IDS == 30, 50, IDS)
"""IDs of which one, in the last row, is beyond the vocabulary."""
WRONG = {
    "late": ({"input_ids": LATE}, "a vocabulary of 50 tokens, and .* has the token ID 50: use"),
    "negative": ({"input_ids": IDS - 2}, "has the token ID -1: use the tokenizer"),
    "types": (
        {"input_ids": IDS, "token_type_ids": torch.full_like(IDS, 2)},
        r"2 types of tokens \(type_vocab_size\), and .* has the type 2",
    ),
    "positions": (
        {"input_ids": IDS, "position_ids": torch.arange(16, 20).expand(8, 4)},
        r"16 positions \(max_position_embeddings\), and .* has the position 16",
    ),
}


def _classifier():
    return BertForSequenceClassification(BertConfig(**SIZES))


def _trained(rows):
    table = Dataset.from_dict({name: column.tolist() for name, column in rows.items()})
    get_trainer(_classifier(), DatasetDict(train=table, test=table), disable_tqdm=True).train()


CALLS = {
    "evaluate": lambda rows: evaluate(_classifier(), rows),
    "fit": lambda rows: fit(_classifier(), rows, epochs=1),
    "predict": lambda rows: predict(_classifier(), rows),
    "quantize": lambda rows: chop.quantize(_classifier(), "8.auto", data=rows),
    "get_trainer": _trained,
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("call", CALLS)
def test_ids_beyond_the_embeddings_are_named(call, kind):
    columns, expected = WRONG[kind]
    with pytest.raises(ConfigError, match=expected):
        CALLS[call]({**columns, "labels": LABELS})


def test_rows_of_different_lengths_of_a_decoder_are_checked():
    rows = [{"input_ids": row[: 2 + i % 3]} for i, row in enumerate(LATE)]
    with pytest.raises(ConfigError, match="the token ID 50"):
        evaluate(LlamaForCausalLM(LlamaConfig(**SIZES)), rows, task="causal-lm")


@pytest.mark.parametrize("call", ["evaluate", "quantize"])
def test_the_tokens_of_one_text_are_no_rows(call):
    with pytest.raises(ConfigError, match=r"rows of tokens \(N, T\), got one text of 4 tokens"):
        CALLS[call]({"input_ids": IDS[0], "labels": LABELS[:4]})


def test_a_model_that_replaces_ids_may_have_any():
    class Hashed(BertForSequenceClassification):
        def forward(self, input_ids, **others):
            return super().forward(input_ids % 50, **others)

    check_token_ids(Hashed(BertConfig(**SIZES)), {"input_ids": LATE})
    positions = torch.arange(16, 20).expand(8, 4)
    rotary = LlamaForCausalLM(LlamaConfig(**SIZES))
    check_token_ids(rotary, {"input_ids": IDS, "position_ids": positions})
