import pytest
from datasets import Dataset, DatasetDict
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from chop.base.notices import collected_assumptions
from chop.data import get_tokenized_dataset, get_tokenizer
from chop.errors import CheckpointError, ConfigError, UnavailableError


def splits(**columns):
    rows = Dataset.from_dict({**columns, "label": [0, 1]})
    return DatasetDict(train=rows, test=rows, unsupervised=rows.map(lambda row: {"label": -1}))


def test_tokens_are_those_of_the_tokenizer_and_not_padded():
    data, tokenizer = get_tokenized_dataset("reviews", "bert-tiny", True, limit=50)
    assert set(data) == {"train", "test"}
    assert set(data["train"].column_names) == {
        "labels", "input_ids", "attention_mask", "token_type_ids",
    }  # fmt: skip
    lengths = {len(row) for row in data["train"]["input_ids"]}
    assert len(lengths) > 5 and max(lengths) < 100
    first = data["test"][0]
    assert tokenizer.pad_token_id not in first["input_ids"]
    assert first["input_ids"][0] == tokenizer.cls_token_id
    assert first["input_ids"][-1] == tokenizer.sep_token_id


def test_without_asking_only_the_data_set_comes_back():
    data = get_tokenized_dataset(dataset=splits(text=["a b", "c"]), checkpoint="bert-tiny")
    assert isinstance(data, DatasetDict)
    assert set(data) == {"train", "test"}
    assert data["train"]["labels"][:] == [0, 1]


@pytest.mark.parametrize("column", ["text", "sentence", "review"])
def test_the_column_of_text_is_found(column):
    data = get_tokenized_dataset(splits(id=[1, 2], **{column: ["the cast", "dull"]}), "bert-tiny")
    assert len(data["train"][0]["input_ids"]) == 4
    assert "id" not in data["train"].column_names


def test_a_column_can_be_named_and_pairs_are_joined():
    named = get_tokenized_dataset(
        splits(body=["the cast", "dull"]), "bert-tiny", text_column="body"
    )
    assert len(named["train"][0]["input_ids"]) == 4
    pairs = get_tokenized_dataset(
        splits(sentence1=["the cast", "dull"], sentence2=["great", "bad"]), "bert-tiny"
    )
    assert pairs["train"][0]["token_type_ids"] == [0, 0, 0, 0, 1, 1]


def test_long_texts_are_cut():
    long = splits(text=["dull " * 900, "dull"])
    assert len(get_tokenized_dataset(long, "bert-tiny")["train"][0]["input_ids"]) == 512
    short = get_tokenized_dataset(long, "bert-tiny", max_length=16)
    assert [len(ids) for ids in short["train"]["input_ids"]] == [16, 3]


TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
MESSAGES = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]
SHAREGPT = [{"from": "human", "value": "a b"}, {"from": "gpt", "value": "c"}]
CHATS = {
    "messages": {"messages": [MESSAGES] * 2},
    "sharegpt": {"conversations": [SHAREGPT] * 2},
    "prompts": {"prompt": [MESSAGES[:1]] * 2, "completion": [MESSAGES[1:]] * 2},
    "texts": {"prompt": ["user: a b\n"] * 2, "completion": ["assistant: c\n"] * 2},
}
BAD_CHATS = {
    "no template": ("", MESSAGES, r"column 'messages' has conversations, .* no chat template"),
    "rejected": ("{{ raise_exception('no system') }}", MESSAGES, "rejects a .*: no system"),
    "empty": (TEMPLATE, [], "1 of 2 rows of the split 'train' have no text"),
}


@pytest.mark.parametrize("case", CHATS)
def test_conversations_and_completions_are_read_as_texts(case):
    tokenizer = get_tokenizer("gpt-tiny")
    tokenizer.chat_template = TEMPLATE
    rows = Dataset.from_dict(CHATS[case])
    data = get_tokenized_dataset(DatasetDict(train=rows, test=rows), tokenizer, labeled=False)
    expected = tokenizer("user: a b\nassistant: c\n")["input_ids"]
    assert data["train"]["input_ids"][:] == [expected] * 2


@pytest.mark.parametrize("case", BAD_CHATS)
def test_conversations_without_a_text_are_refused(case):
    template, messages, reason = BAD_CHATS[case]
    tokenizer = get_tokenizer("gpt-tiny")
    tokenizer.chat_template = template
    chats = splits(messages=[MESSAGES, messages])
    with pytest.raises(ConfigError, match=reason):
        get_tokenized_dataset(chats, tokenizer, text_column="messages")


def test_prompts_without_a_completion_are_refused():
    with pytest.raises(ConfigError, match="'prompt' and 'completion': .* got 'b' and None"):
        get_tokenized_dataset(splits(prompt=["a", "b"], completion=["c", None]), "bert-tiny")


def test_token_ids_in_place_of_texts_are_for_python():
    rows = Dataset.from_dict({"input_ids": [[1, 2]] * 4})
    with pytest.raises(ConfigError, match=r"found .'input_ids'.; .* chop\.compress\(model"):
        get_tokenized_dataset(DatasetDict(train=rows, test=rows), "gpt-tiny", labeled=False)


def test_a_tokenizer_without_its_vocabulary_is_named(tmp_path):
    get_tokenizer("gpt-tiny").save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="a tokenizer without a vocabulary, such as tokenize"):
        get_tokenizer(tmp_path)


def test_bad_arguments_are_named():
    with pytest.raises(ConfigError, match="no text column: expected text or .* found"):
        get_tokenized_dataset(splits(body=["a", "b"]), "bert-tiny")
    with pytest.raises(ConfigError, match="expected txet, found"):
        get_tokenized_dataset(splits(text=["a", "b"]), "bert-tiny", text_column="txet")
    with pytest.raises(ConfigError, match="max_length: expected at least 3 tokens, .* got 2"):
        get_tokenized_dataset(splits(text=["a", "b"]), "bert-tiny", max_length=2)
    with pytest.raises(ConfigError, match="'maxlength': did you mean 'max_length'"):
        get_tokenized_dataset(splits(text=["a", "b"]), "bert-tiny", maxlength=5)


TEXTS = [["w"] * 3, ["w"] * 2]
BAD_COLUMNS = {
    "no labels": ({"tokens": TEXTS, "labels": [[], [0, 1]]}, "got 0 for the 3 words"),
    "few labels": ({"tokens": TEXTS, "labels": [[0, 1, 0], [1]]}, "got 1 for the 2 words .* 'w w'"),
    "many labels": ({"tokens": TEXTS, "labels": [[0] * 4, [0] * 2]}, "per word, got 4 for the 3"),
}


@pytest.mark.parametrize("case", BAD_COLUMNS)
def test_words_without_a_label_each_are_refused(case):
    columns, message = BAD_COLUMNS[case]
    data = DatasetDict({"train": Dataset.from_dict(columns)})
    with pytest.raises(ConfigError, match=message):
        get_tokenized_dataset(data, "bert-tiny")


@pytest.mark.parametrize("checkpoint", ["bert-tinny", "bert-base-uncased"])
def test_a_tokenizer_that_cannot_be_fetched_is_one_sentence(checkpoint):
    with pytest.raises(UnavailableError) as caught:
        get_tokenizer(checkpoint)
    message = str(caught.value)
    assert message.startswith(f"'{checkpoint}': no tokenizer found") and "\n" not in message
    assert "bert-tiny" in message


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(UnavailableError, match="no tokenizer found; pass a local folder"):
        get_tokenizer(tmp_path)


def test_blank_texts_and_other_columns_are_named(tmp_path):
    words = {"[UNK]": 0, "good": 1, "bad": 2}
    plain = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]")
    columns = {"text": ["good", "bad"] * 4, "title": ["x"] * 8, "label": [0, 1] * 4}
    data = DatasetDict(train=Dataset.from_dict(columns), test=Dataset.from_dict(columns))
    with collected_assumptions() as assumed:
        get_tokenized_dataset(data, tokenizer, max_length=4)
    assert [each.text for each in assumed] == [
        "Columns that are not read: 'title'. Texts are in 'text' (--text-column)."
    ]
    data["test"] = Dataset.from_dict({**columns, "text": ["good", "bad", " ", *["good"] * 5]})
    with pytest.raises(ConfigError, match="row 3 of the split 'test' has no token in the column"):
        get_tokenized_dataset(data, tokenizer, max_length=4)
