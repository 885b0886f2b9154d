import math
import random
import re

import pytest
import torch
from transformers import AutoTokenizer

from chop.data import get_dataset_info, get_tokenizer, load_dataset
from chop.data.stories import END, story
from chop.errors import ConfigError


@pytest.fixture(scope="module")
def splits():
    return load_dataset("stories")


def test_sizes_and_no_story_in_both_splits(splits):
    train, test = splits["train"]["text"][:], splits["test"]["text"][:]
    assert (len(train), len(test)) == (3000, 400)
    assert len({*train, *test}) == 3400
    assert splits["train"].column_names == ["text"]
    assert all(text.endswith(END) for text in train)
    assert load_dataset("stories")["test"]["text"][:] == test


def test_the_answer_follows_from_reading(splits):
    """An independent reader, who follows the thing through the story."""
    for text in splits["test"]["text"][:]:
        story, answer = text.removesuffix(END).rsplit("? ", 1)
        owner, thing = story.split()[0], re.search(r"the (\w+)( now)?$", story)[1]
        color = re.search(rf"has a (\w+) {thing}\.|{thing} is (\w+)\.", story)
        assert (color[1] or color[2]) in answer.rstrip(".").split()
        moved = re.search(r"gives it to (\w+)\.|and (\w+) finds it|sells the \w+ to (\w+)", story)
        if story.rsplit(". ", 1)[1].startswith("Where"):
            spot = re.search(r"(behind|under) the (\w+)", story)
            assert answer.endswith(f"{spot[1]} the {spot[2]}.")
        else:
            assert (next(filter(None, moved.groups())) if moved else owner) in answer


def test_every_word_is_a_token_and_others_are_spelled():
    tokenizer = get_tokenizer("stories")
    texts = [story(random.Random(seed)) for seed in range(200)]
    rows = tokenizer(texts)["input_ids"]
    assert [len(row) for row in rows] == [1 + len(re.findall(r"\w+|[^\w ]", t)) for t in texts]
    assert tokenizer.batch_decode(rows, skip_special_tokens=True) == texts
    other = "Zoë's 3 kites,\n  and émile"
    spelled = tokenizer(other)["input_ids"]
    assert tokenizer.unk_token_id not in spelled
    assert tokenizer.decode(spelled, skip_special_tokens=True) == other
    assert len(tokenizer) == get_dataset_info("stories").num_classes


def test_an_end_in_the_text_is_the_token_that_stops_generation(splits):
    tokenizer = get_tokenizer("gpt-tiny")
    row = tokenizer(splits["test"][0]["text"])["input_ids"]
    assert (row[0], row[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert tokenizer.padding_side == "left"


def test_the_tokenizer_survives_saving(tmp_path):
    tokenizer = get_tokenizer("gpt-tiny")
    tokenizer.save_pretrained(tmp_path)
    for again in (get_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)):
        text = "Ida hides the xylophone behind the wall."
        assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert again.padding_side == "left" and len(again) == len(tokenizer)


def test_stories_have_no_labels():
    with pytest.raises(ConfigError, match="label column"):
        load_dataset("stories", label="mood")


def test_single_words_say_little(splits):
    """Perplexity of the words without their order, the baseline of a language model."""
    tokenizer = get_tokenizer("stories")
    ids = {
        name: torch.cat([torch.tensor(row) for row in tokenizer(split["text"][:])["input_ids"]])
        for name, split in splits.items()
    }
    counts = torch.bincount(ids["train"], minlength=len(tokenizer)).double() + 1
    surprise = -(counts / counts.sum()).log()[ids["test"]].mean()
    assert 50 < math.exp(surprise) < 80
