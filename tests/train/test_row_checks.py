"""Rows of other lengths, other columns or another kind are refused by their number."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import chop
from chop.base.notices import collected_assumptions
from chop.errors import ConfigError
from chop.train import evaluate, fit, read_rows, user_code
from chop.train.given.row_checks import PER_TOKEN
from chop.train.tasks import find_task
from chop.train.unlabeled import read_inputs

X, Y = torch.randn(6, 3), torch.arange(6) % 2
SHORT = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0]]
TWO = r"column 'x': row 2 has 2 numbers \(7, 8\), and row 0 has 3 numbers \(1, 2, 3\)"


def _pairs(*items):
    return [{"x": x, "label": i % 2} for i, x in enumerate(items)]


LABELED = {
    "short vector": ({"x": SHORT, "label": [0, 1, 0]}, TWO),
    "short vector in items": (_pairs(*SHORT), TWO),
    "long vector": (_pairs([1.0], [1.0], [1.0, 2.0]), "row 2 has 2 numbers .* row 0 has 1 number "),
    "empty vector": (_pairs([1, 2], []), "row 1 has 0 numbers, .*: fill the row|fill the row"),
    "images": (
        _pairs(torch.ones(3, 4, 4), torch.ones(3, 4, 4), torch.ones(3, 4, 5)),
        r"row 2 has an array of shape \(3, 4, 5\), and row 0 .*\(3, 4, 4\); bring all rows to one",
    ),
    "fewer rows in a column": (
        {"a": X, "b": X[:4], "label": Y},
        "equally many rows in every column: 'a' has 6, 'b' has 4, 'label' has 6",
    ),
    "single number": ({"a": X, "b": torch.tensor(3.0), "label": Y}, "'b': .* a single number"),
    "single label": ({"a": X, "label": torch.tensor(3)}, "'label': .* a single number"),
    "missing column": (
        [{"x": X[0], "label": 0}, {"x": X[1]}],
        "row 1 has 'x', and row 0 has 'x', 'label'",
    ),
    "none": ([(X[0], 0), None], "got None in row 1"),
    "mask": (
        {"input_ids": [[1, 2], [3]], "attention_mask": [[1, 1], [1, 1]], "label": [0, 1]},
        "row 1 has 1 number in 'input_ids' and 2 in 'attention_mask'",
    ),
    "parts of a batch": (
        DataLoader([(X[:2], Y[:3])], batch_size=None),
        "in each part of a batch, got .* 2, labels 3",
    ),
}


@pytest.mark.parametrize(("data", "message"), LABELED.values(), ids=LABELED)
def test_rows_that_do_not_belong_together_are_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        read_rows(data)


UNLABELED = {
    "none after tensors": ([X[0], None], "item 1 is None, and item 0 is a Tensor"),
    "text after tensors": ([X[0], X[1], "a"], "item 2 is a str, and item 0 is a Tensor"),
    "columns": ({"a": X, "b": X[:4]}, "'a' has 6, 'b' has 4"),
    "short vector": (SHORT, "row 2 has 2 numbers"),
}


@pytest.mark.parametrize(("data", "message"), UNLABELED.values(), ids=UNLABELED)
def test_unlabeled_rows_that_do_not_belong_together_are_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        read_inputs(nn.Linear(3, 2), data)


def test_tokens_and_masked_signals_of_several_lengths_are_padded():
    tokens = read_rows({"input_ids": [[1, 2, 3], [4]], "label": [0, 1]})
    (batch,) = tokens.batches(2, pad_id=9)
    assert sorted(batch["input_ids"].tolist()) == [[1, 2, 3], [4, 9, 9]]
    masked = {"input_values": [[1.0, 2.0], [3.0]], "attention_mask": [[1, 1], [1]], "label": [0, 1]}
    (batch,) = read_rows(masked).batches(2)
    assert sorted(batch["input_values"].tolist()) == [[1.0, 2.0], [3.0, 0.0]]


class Broken(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return {}["pixels"] if i == 2 else (X[i], Y[i])


class BrokenStream(IterableDataset):
    def __iter__(self):
        yield X[0], Y[0]
        raise FileNotFoundError("shard-1")


def _fail(*given):
    raise KeyError("size")


CODE = {
    "data set": (lambda: read_rows(Broken()), r"data: item 2: line \d+, in Broken.__getitem__, .*"),
    "loader": (
        lambda: read_rows(DataLoader(Broken(), batch_size=2)),
        r"data: item 1: line .*Error",
    ),
    "stream": (lambda: read_rows(BrokenStream()), "data: item 1: .* FileNotFoundError: shard-1"),
    "iterator": (lambda: read_rows(x["no"] for x in [{}]), "data: item 0: line .* KeyError: 'no'"),
    "unlabeled loader": (
        lambda: chop.quantize(_net(), data=DataLoader(Broken(), batch_size=2)),
        "data: item 1: line .* KeyError: 'pixels'",
    ),
    "metric": (
        lambda: evaluate(_net(), (X, Y), metric=_fail),
        "metric '_fail': line .* KeyError: 'size'",
    ),
    "on_step": (lambda: fit(_net(), (X, Y), on_step=_fail), "on_step: line .* KeyError: 'size'"),
    "progress": (lambda: fit(_net(), (X, Y), progress=_fail), "progress: line .* KeyError: 'size'"),
}


def _net():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.mark.parametrize(("call", "message"), CODE.values(), ids=CODE)
def test_exceptions_of_the_users_code_name_its_line(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize("is_left", [False, True], ids=["at the end", "at the beginning"])
@pytest.mark.parametrize("call", [evaluate, fit])
def test_padding_without_a_mask_is_refused(call, is_left):
    sizes = {"vocab_size": 32, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
    model = GPT2LMHeadModel(GPT2Config(**sizes, pad_token_id=0))
    ids = torch.randint(1, 32, (4, 8)) * (torch.arange(8) < torch.tensor([[3], [8], [5], [6]]))
    rows = {"input_ids": ids.flip(1) if is_left else ids}
    with pytest.raises(ConfigError, match="several tokens 0, the pad_token_id .* no attention_mas"):
        call(model, rows, task="causal-lm")
    call(model, {**rows, "attention_mask": rows["input_ids"].ne(0).long()}, task="causal-lm")
    labels = rows["input_ids"].masked_fill(rows["input_ids"] == 0, -100)
    if not is_left:
        call(model, {**rows, "labels": labels}, task="causal-lm")


@pytest.mark.parametrize("has_mask", [False, True])
def test_padding_without_a_mask_is_an_assumption_for_classes(has_mask):
    config = BertConfig(
        vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, pad_token_id=0, max_position_embeddings=8,
    )  # fmt: skip
    ids = torch.randint(1, 32, (4, 8)) * (torch.arange(8) < torch.tensor([[3], [8], [5], [6]]))
    rows = {"input_ids": ids, "label": [0, 1, 0, 1]}
    rows |= {"attention_mask": ids.ne(0).long()} if has_mask else {}
    model = BertForSequenceClassification(config)
    with collected_assumptions() as found:
        evaluate(model, rows)
    assert ["reads this padding as text" in x.text for x in found] == [True] * (not has_mask)
    with pytest.raises(
        ConfigError, match=r"up to 9 tokens, .* at most 8: cut the rows, input_ids\[:, :8\], or"
    ):
        evaluate(model, {"input_ids": torch.ones(2, 9).long(), "label": [0, 1]})


@pytest.mark.parametrize("wrap", [iter, lambda data: data, DataLoader])
def test_a_long_stream_is_reported_while_it_is_read(wrap, monkeypatch, caplog):
    class Stream(IterableDataset):
        def __iter__(self):
            for i in range(8):
                assert i < 5 or "still reading, 3 items so far. An endless data" in caplog.text
                yield X[0], i % 2

    monkeypatch.setattr(user_code, "REPORT_ITEMS", 3)
    assert len(read_rows(wrap(Stream()))) == 8
    assert caplog.text.count("islice(dataset, N)") == 1


PAIR = r"row 0 has 2 labels for 4 tokens in 'input_ids'\. Pass a label .* -100 for tokens without"
EITHER = "different numbers of classes.* pad the labels with -100 .* --task token-classification"


@pytest.mark.parametrize(
    "task, labels, message",
    [
        ("token-classification", [[1] * (2 + k % 2) for k in range(4)], PAIR),
        ("token-classification", [[1] * 2] * 4, PAIR),
        (None, [[1] * (2 + k % 2) for k in range(4)], EITHER),
        ("multilabel", [[1] * (2 + k % 2) for k in range(4)], EITHER),
    ],
)
def test_labels_per_word_need_padding(task, labels, message):
    ids = [[3] * 4] * 4
    task = task and find_task(task)
    with pytest.raises(ConfigError, match=message):
        read_rows({"input_ids": ids, "labels": labels}, task)
    padded = [row + [-100] * (len(own) - len(row)) for row, own in zip(labels, ids, strict=True)]
    assert len(read_rows({"input_ids": ids, "labels": padded}, find_task(PER_TOKEN))) == 4
