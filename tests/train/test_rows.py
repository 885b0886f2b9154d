import math
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset

from chop.base.notices import collected_assumptions
from chop.data import load_dataset
from chop.errors import ConfigError
from chop.train import read_rows
from chop.train.rows import padding_token


def texts(lengths):
    return Dataset.from_dict(
        {
            "input_ids": [[100 + i] * n for i, n in enumerate(lengths)],
            "attention_mask": [[1] * n for n in lengths],
            "label": [i % 3 for i in range(len(lengths))],
            "comment": ["not a number"] * len(lengths),
        }
    )


def test_texts_are_batched_by_length_and_padded_within_the_batch():
    rows = read_rows(texts([5, 1, 4, 2, 3]))
    batches = list(rows.batches(2, pad_id=7))
    assert [tuple(batch["input_ids"].shape) for batch in batches] == [(2, 2), (2, 4), (1, 5)]
    assert batches[0]["input_ids"].tolist() == [[101, 7], [103, 103]]
    assert batches[0]["attention_mask"].tolist() == [[1, 0], [1, 1]]
    assert batches[0]["labels"].tolist() == [1, 0]
    assert batches[0].keys() == {"input_ids", "attention_mask", "labels"}


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 1000])
def test_every_row_comes_once_with_its_own_label(shuffled, batch_size):
    lengths = [1 + (7 * i) % 11 for i in range(300)]
    rows = read_rows(texts(lengths))
    generator = torch.Generator().manual_seed(3) if shuffled else None
    seen = {}
    for batch in rows.batches(batch_size, shuffle=generator):
        for ids, mask, label in zip(
            batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True
        ):
            assert int(mask.sum()) == lengths[int(ids[0]) - 100]
            seen[int(ids[0]) - 100] = int(label)
    assert seen == {i: i % 3 for i in range(300)}


def test_shuffling_is_decided_by_the_generator_and_wastes_little_padding():
    rows = read_rows(texts([1 + (31 * i) % 97 for i in range(2000)]))

    def order(seed):
        shuffle = torch.Generator().manual_seed(seed)
        return [batch["input_ids"][:, 0] for batch in rows.batches(20, shuffle=shuffle)]

    assert torch.equal(torch.cat(order(0)), torch.cat(order(0)))
    assert not torch.equal(torch.cat(order(0)), torch.cat(order(1)))
    tokens = sum(len(row) for row in rows.columns["input_ids"])
    shuffle = torch.Generator().manual_seed(0)
    padded = sum(batch["input_ids"].numel() for batch in rows.batches(20, shuffle=shuffle))
    assert padded < 1.1 * tokens


def test_images_and_other_data_sets():
    digits = load_dataset("digits")["test"]
    rows = read_rows(digits)
    assert torch.equal(rows.columns["pixel_values"], digits[:]["pixel_values"])
    items = [{"x": torch.full((2,), float(i)), "labels": i % 2} for i in range(5)]
    plain = read_rows(items)
    assert len(plain) == 5 and plain.columns["x"].shape == (5, 2)
    assert plain.labels.tolist() == [0, 1, 0, 1, 0]
    assert read_rows(rows) is rows


def test_selected_and_shuffled_data_sets_keep_their_order():
    data = texts([3, 1, 2, 5]).select([2, 0, 3])
    assert [len(row) for row in read_rows(data).columns["input_ids"]] == [2, 3, 5]


def test_a_transform_of_the_users_is_applied():
    def scale(batch):
        return {"x": [torch.tensor(row) / 2 for row in batch["x"]], "labels": batch["labels"]}

    data = Dataset.from_dict({"x": [[2.0, 4.0], [6.0, 8.0]], "labels": [0, 1]})
    rows = read_rows(data.with_transform(scale))
    assert rows.columns["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert rows.labels.tolist() == [0, 1]


def test_what_cannot_be_read_is_refused():
    with pytest.raises(ConfigError, match="expected rows with a column 'labels' or 'label'"):
        read_rows(Dataset.from_dict({"x": [[1.0], [2.0]]}))
    with pytest.raises(ConfigError, match="tokenize texts first"):
        read_rows(Dataset.from_dict({"text": ["a"], "label": [0]}))
    with pytest.raises(ConfigError, match="got 0 rows"):
        read_rows([])


GAPS = {
    "a vector": (torch.tensor([[1.0, 2.0], [math.nan, 1.0], [1.0, 2.0]]), "row 1"),
    "numbers": (torch.tensor([1.0, math.nan, math.nan]), "2 of 3 rows .*row 1, 2"),
    "pictures": (torch.full((3, 1, 2, 2), math.nan), "row 0, 1, 2"),
    "of several lengths": (
        [torch.ones(2), torch.ones(3), torch.tensor([1.0, math.nan])],
        "1 of 3 rows .*row 2",
    ),
}


@pytest.mark.parametrize("case", GAPS)
def test_inputs_with_gaps_are_refused_by_column_and_row(case):
    column, message = GAPS[case]
    with pytest.raises(ConfigError, match=f"column 'x': .*{message}"):
        columns = {"x": column, "attention_mask": torch.ones(3)}
        read_rows({**columns, "labels": torch.tensor([0, 1, 0])})


def test_a_mask_of_infinities_has_no_gaps():
    mask = torch.tensor([[0.0, -math.inf], [0.0, 0.0]])
    rows = read_rows({"mask": mask, "labels": torch.tensor([0, 1])})
    assert torch.equal(rows.columns["mask"], mask)


@pytest.mark.parametrize(
    ("whole", "text", "expected"),
    [
        ({"vocab_size": 50, "pad_token_id": 3}, None, 3),
        ({"vocab_size": 50, "pad_token_id": 50}, None, 0),
        ({"vocab_size": 50, "pad_token_id": -1}, None, 0),
        ({"vocab_size": 50, "pad_token_id": None}, None, 0),
        ({"pad_token_id": 7}, None, 7),
        ({"pad_token_id": 128002}, {"vocab_size": 50, "pad_token_id": 2}, 2),
        ({"pad_token_id": 128002}, {"vocab_size": 50, "pad_token_id": None}, 0),
        ({"pad_token_id": 4}, {"vocab_size": 50, "pad_token_id": None}, 4),
        ({}, None, 0),
    ],
)
def test_padding_is_a_token_of_the_texts_vocabulary(whole, text, expected):
    config = SimpleNamespace(**whole)
    if text is not None:
        config.text_config = SimpleNamespace(**text)
    assert padding_token(SimpleNamespace(config=config)) == expected
    assert padding_token(SimpleNamespace()) == 0


MASKED = {"input_ids": [[5, 6, 0], [7, 8, 9]], "attention_mask": [[1, 1, 0], [1, 1, 1]]}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([[5, 6, 0], [7, 8, 9]], [[5, 6, -100], [7, 8, 9]]),
        ([[1, 2, 0], [0, 1, 1]], [[1, 2, -100], [0, 1, 1]]),
        ([[1, 2, -100], [0, 1, 1]], [[1, 2, -100], [0, 1, 1]]),
    ],
    ids=["tokens", "classes", "marked"],
)
def test_labels_of_padding_do_not_count(labels, expected):
    with collected_assumptions() as found:
        rows = read_rows({**MASKED, "labels": labels})
    assert torch.as_tensor(rows.labels).tolist() == expected
    assert len(found) == (labels != expected)


def test_labels_of_masked_tokens_that_differ_count():
    rows = {**MASKED, "attention_mask": [[1, 0, 0], [1, 1, 1]], "labels": [[3, 4, 5], [6, 7, 8]]}
    assert torch.as_tensor(read_rows(rows).labels).tolist() == rows["labels"]


@pytest.mark.parametrize("lengths", [(4, 4), (4, 2)], ids=["one length", "several lengths"])
def test_tokens_with_a_batch_dimension_of_one_are_rows(lengths):
    items = [
        {"input_ids": torch.full((1, n), n), "attention_mask": torch.ones(1, n), "label": i}
        for i, n in enumerate(lengths)
    ]
    rows = read_rows(items)
    assert [row.tolist() for row in rows.columns["input_ids"]] == [[n] * n for n in lengths]
    assert [row.shape for row in rows.columns["attention_mask"]] == [(n,) for n in lengths]
    assert rows.labels.tolist() == [0, 1]
