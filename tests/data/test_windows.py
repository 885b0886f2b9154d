from itertools import chain

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict

from chop.data import get_tokenized_dataset, get_tokenizer, load_dataset
from chop.data.windows import strided_windows
from chop.errors import ConfigError
from chop.models import load_model
from chop.train import TASKS, evaluate, read_rows

LINES = [
    line for text in load_dataset("stories", limit=6)["test"]["text"] for line in text.split(". ")
]


def field_perplexity(model, ids, length, stride):
    """The loop of Hugging Face's page on the perplexity of fixed-length models."""
    surprise, previous = [], 0
    for begin in range(0, len(ids), stride):
        end = min(begin + length, len(ids))
        labels = ids[None, begin:end].clone()
        labels[:, : -(end - previous)] = -100
        with torch.no_grad():
            logits = model(ids[None, begin:end]).logits
        nll = torch.nn.functional.cross_entropy(
            logits[0, :-1], labels[0, 1:], reduction="none", ignore_index=-100
        )
        surprise.append(nll[labels[0, 1:] != -100])
        previous = end
        if end == len(ids):
            break
    return torch.cat(surprise).double().mean().exp().item(), sum(map(len, surprise))


@pytest.mark.parametrize(("length", "stride"), [(16, 8), (16, 5), (10, 10), (400, 100)])
@pytest.mark.sampled(3)
def test_windows_are_those_of_the_field(tmp_path, length, stride):
    tokenizer, model = get_tokenizer("gpt-tiny"), load_model("gpt-tiny")
    (tmp_path / "test.txt").write_text("\n".join(LINES), encoding="utf-8")
    (tmp_path / "train.txt").write_text("\n".join(LINES[:3]), encoding="utf-8")
    data = get_tokenized_dataset(
        tmp_path, tokenizer, max_length=length, stride=stride, labeled=False
    )
    ids = torch.tensor(tokenizer("\n".join(LINES))["input_ids"])
    rows = read_rows(data["test"], TASKS["causal-lm"])
    assert rows.task.name == "causal-lm"
    expected, count = field_perplexity(model, ids, length, stride)
    assert evaluate(model, rows) == pytest.approx(expected, rel=1e-5)
    scored = sum(int((labels[1:] != -100).sum()) for labels in rows.labels)
    assert scored == count
    assert scored == len(ids) - (1 if stride < length else len(rows))


def surprise(model, window):
    """Negative log likelihoods of the tokens of a window but the first, in float64."""
    with torch.no_grad():
        logits = model(window[None]).logits[0, :-1].double().numpy()
    total = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    return total - logits[np.arange(len(logits)), window[1:].numpy()]


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """A folder of lines, the model, and the tokens of its test file."""
    folder = tmp_path_factory.mktemp("book")
    (folder / "test.txt").write_text("\n".join(LINES), encoding="utf-8")
    (folder / "train.txt").write_text("\n".join(LINES[:3]), encoding="utf-8")
    ids = torch.tensor(get_tokenizer("gpt-tiny")("\n".join(LINES))["input_ids"])
    return folder, load_model("gpt-tiny"), ids


def perplexity_of(book, length, stride):
    """Perplexity of chop on the whole windows, and on all windows."""
    folder, model, _ = book
    data = get_tokenized_dataset(
        folder, "gpt-tiny", max_length=length, stride=stride, labeled=False
    )
    rows = read_rows(data["test"], TASKS["causal-lm"])
    whole = [i for i, row in enumerate(rows.labels) if len(row) == length]
    return evaluate(model, rows.take(torch.tensor(whole))), evaluate(model, rows)


def test_disjoint_windows_are_those_of_papers_on_quantization(book):
    """The loop of GPTQ's code: the mean of each whole window, times its length."""
    _, model, ids = book
    length = 16
    count = len(ids) // length
    assert len(ids) % length > 1  # GPTQ leaves the rest out
    losses = [surprise(model, ids[i * length : (i + 1) * length]) for i in range(count)]
    total = sum(loss.mean() * length for loss in losses)
    whole, everything = perplexity_of(book, length, length)
    assert whole == pytest.approx(np.exp(total / (count * length)), rel=1e-6)
    tokens = np.concatenate([*losses, surprise(model, ids[count * length :])])
    assert len(tokens) == len(ids) - count - 1
    assert everything == pytest.approx(np.exp(tokens.mean()), rel=1e-6)


@pytest.mark.parametrize("stride", [5, 16])
def test_the_page_of_hugging_face_weights_windows_by_one_token_less(book, stride):
    _, model, ids = book
    length, previous, total, by_page, tokens, loss_tokens = 16, 0, 0.0, 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + length, len(ids))
        scored = end - previous
        losses = surprise(model, ids[begin:end])[-scored:]
        total, tokens = total + losses.sum(), tokens + len(losses)
        # Labels other than -100 minus one, also where the first label has a context.
        by_page, loss_tokens = by_page + losses.mean() * (scored - 1), loss_tokens + scored - 1
        previous = end
        if end == len(ids):
            break
    _, everything = perplexity_of(book, length, stride)
    assert everything == pytest.approx(np.exp(total / tokens), rel=1e-6)
    page = np.exp(by_page / loss_tokens)
    assert page == pytest.approx(everything, rel=1e-6 if stride == length else 0.02)


def test_only_the_first_window_begins_with_the_bos_token(book):
    folder, _, ids = book
    bos = get_tokenizer("gpt-tiny").bos_token_id
    data = get_tokenized_dataset(folder, "gpt-tiny", max_length=16, stride=16, labeled=False)
    windows = data["test"]["input_ids"]
    assert ids[0] == bos and [*chain(*windows)].count(bos) == 1 and windows[0][0] == bos


@pytest.mark.parametrize(("length", "stride"), [(1, 1), (3, 3), (7, 2), (8, 1), (50, 20)])
def test_every_token_is_labeled_once(length, stride):
    seen = [label for _, labels in strided_windows(range(23), length, stride) for label in labels]
    assert [label for label in seen if label != -100] == list(range(23))


def test_one_file_of_lines_is_cut_in_order(tmp_path):
    (tmp_path / "book.txt").write_text("\n".join(LINES), encoding="utf-8")
    data = load_dataset(tmp_path / "book.txt", labeled=False, limit=2)
    assert [*data["train"]["text"], *data["test"]["text"]] == LINES
    windows = get_tokenized_dataset(
        tmp_path / "book.txt", "gpt-tiny", max_length=12, limit=3, labeled=False
    )
    assert [len(split) for split in windows.values()] == [3, 3]
    ids = get_tokenizer("gpt-tiny")("\n".join(data["train"]["text"]))["input_ids"]
    assert [*chain(*windows["train"]["input_ids"])] == ids[:36]
    (first, second, _) = windows["test"]["input_ids"]
    assert first[6:] == second[:6]


def test_texts_of_a_table_are_joined_where_a_stride_is_given():
    table = DatasetDict({name: Dataset.from_dict({"text": LINES}) for name in ("train", "test")})
    data = get_tokenized_dataset(table, "gpt-tiny", max_length=20, stride=20, labeled=False)
    ids = get_tokenizer("gpt-tiny")("\n\n".join(LINES))["input_ids"]
    assert [*chain(*data["test"]["input_ids"])] == ids
    rows = get_tokenized_dataset(table, "gpt-tiny", max_length=20, labeled=False)
    assert len(rows["test"]) == len(LINES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 1}, "max_length: expected at least 2 tokens.*, got 1"),
        ({"max_length": 8, "stride": 9}, "stride: expected 1 to the window length 8"),
    ],
)
def test_windows_that_cannot_be(tmp_path, settings, message):
    (tmp_path / "book.txt").write_text("a\nb\nc\n")
    with pytest.raises(ConfigError, match=message):
        get_tokenized_dataset(tmp_path / "book.txt", "gpt-tiny", labeled=False, **settings)


def test_labels_and_a_stride_exclude_each_other():
    with pytest.raises(ConfigError, match="stride: labeled texts are not cut into windows"):
        get_tokenized_dataset("reviews", "reviews", stride=4, limit=5)
