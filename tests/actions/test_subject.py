"""What a job works on: models, tokenizers and rows, by name and from Python."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from chop.actions.subject import SubjectConfig, load_subject
from chop.data import get_tokenizer, load_dataset
from chop.errors import ConfigError, UnavailableError


def bert(vocab_size=200):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertForSequenceClassification(
        BertConfig(vocab_size=vocab_size, intermediate_size=16, num_labels=2, **sizes)
    )


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for name, split in load_dataset("reviews", limit=12).items():
        split.to_parquet(folder / f"{name}.parquet")
    return folder


def config_of(model, data, out, **settings):
    return SubjectConfig(model=str(model), dataset=str(data), out=out / "out", **settings)


# --- tokenizers ----------------------------------------------------------------------------------


def test_a_model_folder_without_a_tokenizer_is_refused(texts, tmp_path):
    bert().save_pretrained(tmp_path)
    with pytest.raises(UnavailableError, match="no tokenizer found; .*--tokenizer") as caught:
        load_subject(config_of(tmp_path, texts, tmp_path))
    assert "\n" not in str(caught.value)


def test_the_tokenizer_may_be_elsewhere(texts, tmp_path):
    bert().save_pretrained(tmp_path / "model")
    get_tokenizer("reviews").save_pretrained(tmp_path / "words")
    apart = load_subject(
        config_of(tmp_path / "model", texts, tmp_path, tokenizer=str(tmp_path / "words"))
    )
    get_tokenizer("reviews").save_pretrained(tmp_path / "model")
    within = load_subject(config_of(tmp_path / "model", texts, tmp_path))
    ids = [subject.test.columns["input_ids"] for subject in (apart, within)]
    assert all(torch.equal(a, b) for a, b in zip(*ids, strict=True))
    assert max(int(row.max()) for row in ids[0]) > 100


@pytest.mark.parametrize("vocab_size", [100, 5000], ids=["too small", "too large"])
def test_a_tokenizer_of_another_model_is_refused(texts, tmp_path, vocab_size):
    bert(vocab_size).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=f"157 tokens and the model's vocabulary {vocab_size:,}"):
        load_subject(config_of(tmp_path, texts, tmp_path, tokenizer="reviews"))
