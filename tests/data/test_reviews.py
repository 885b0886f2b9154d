import random

import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from chop.data import get_tokenizer, load_dataset
from chop.data.reviews import DENIED, FAULTS, VIRTUES, review


@pytest.fixture(scope="module")
def splits():
    return load_dataset("reviews")


def test_sizes_balance_and_no_review_in_both_splits(splits):
    train, test = splits["train"], splits["test"]
    assert (len(train), len(test)) == (4000, 1000)
    assert sum(train["label"]) == 2000 and sum(test["label"]) == 500
    assert len({*train["text"], *test["text"]}) == 5000
    assert train.features["label"].names == ["neg", "pos"]


def test_the_same_reviews_every_time(splits):
    assert load_dataset("reviews")["test"]["text"][:] == splits["test"]["text"][:]


def test_counting_words_does_not_suffice_but_says_something(splits):
    words = CountVectorizer()
    counts = words.fit_transform(splits["train"]["text"][:])
    model = LogisticRegression(max_iter=300).fit(counts, splits["train"]["label"][:])
    score = model.score(words.transform(splits["test"]["text"][:]), splits["test"]["label"][:])
    assert 0.55 < score < 0.80


def test_the_label_follows_from_reading(splits):
    """An independent reader: the main clause's quality, turned round by a denial."""
    for row in splits["test"].select(range(300)):
        for sentence in row["text"].rstrip(".").split(". "):
            main = sentence.rpartition(", but ")[2]
            if main.startswith("although "):
                main = main.partition(", ")[2]
            main = main.partition(", although ")[0]
            praises = main.split()[-1] in VIRTUES
            assert praises or main.split()[-1] in FAULTS
            is_denied = any(denial in main for denial in DENIED)
            assert (praises != is_denied) == bool(row["label"]), sentence


def test_the_tokenizer_knows_every_word_and_spells_others():
    tokenizer = get_tokenizer("reviews")
    texts = [review(random.Random(seed), bool(seed % 2)) for seed in range(200)]
    ids = tokenizer(texts)["input_ids"]
    assert not any(tokenizer.unk_token_id in row for row in ids)
    assert tokenizer.decode(ids[0], skip_special_tokens=True).replace(" ", "") == (
        texts[0].replace(" ", "")
    )
    assert tokenizer.convert_ids_to_tokens(tokenizer("xq")["input_ids"]) == [
        "[CLS]", "x", "##q", "[SEP]",
    ]  # fmt: skip
    assert len(tokenizer) <= 512
    assert tokenizer.is_fast and tokenizer.model_max_length == 512


def test_the_tokenizer_survives_saving(tmp_path):
    get_tokenizer("bert-tiny").save_pretrained(tmp_path)
    text = "the plot was not bad, but the cast felt flat."
    assert get_tokenizer(tmp_path)(text)["input_ids"] == get_tokenizer("reviews")(text)["input_ids"]
