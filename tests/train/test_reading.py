"""Whatever rows are held in, the numbers are the same."""

import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from datasets import Dataset
from PIL import Image
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)
from transformers import ViTConfig, ViTForImageClassification

from chop.data import load_dataset
from chop.errors import ConfigError
from chop.train import evaluate, fit, read_rows
from chop.train.given.reading import read_columns

X = np.random.default_rng(0).normal(size=(50, 6))
Y = (X[:, 0] > X[:, 1]).astype(np.int64)
TX, TY = torch.from_numpy(X).float(), torch.from_numpy(Y)
SET = TensorDataset(TX, TY)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(TX, TY, strict=True))


KINDS = {
    "named": {"x": TX, "labels": TY},
    "arrays": (X, Y),
    "lists": (X.tolist(), Y.tolist()),
    "tensors": (TX, TY),
    "tensor set": SET,
    "subset": Subset(SET, range(50)),
    "pairs": [(x, int(y)) for x, y in SET],
    "mappings": [{"x": x, "label": y} for x, y in SET],
    "loader": DataLoader(SET, batch_size=7),
    "shuffled loader": DataLoader(SET, batch_size=7, shuffle=True, drop_last=True),
    "loader of one row": DataLoader(SET, batch_size=None),
    "loader of mappings": DataLoader(
        Dataset.from_dict({"x": TX, "label": TY}).with_format("torch")
    ),
    "stream": DataLoader(Stream(), batch_size=7),
    "data set": Dataset.from_dict({"x": X, "labels": Y}),
}


def classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_rows_gives_the_same_numbers(kind):
    model = classifier()
    with torch.no_grad():
        expected = (model(TX).argmax(-1) == TY).double().mean().item()
    state = torch.get_rng_state()
    assert evaluate(model, KINDS[kind]) == expected
    assert torch.equal(torch.get_rng_state(), state)
    fit(model, KINDS[kind], epochs=2, lr=1e-2, batch_size=16)
    twin = classifier()
    fit(twin, KINDS["named"], epochs=2, lr=1e-2, batch_size=16)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )


def test_a_sampler_that_chooses_rows_is_kept():
    first = WeightedRandomSampler([1.0] + [0.0] * 49, 12)
    rows = read_rows(DataLoader(SET, batch_size=5, sampler=first))
    assert len(rows) == 12 and torch.equal(rows.columns["input 0"][3], TX[0])


def test_several_inputs_feed_the_parameters_in_their_order():
    class Two(nn.Module):
        def forward(self, left, right, scale=2.0):
            return torch.stack([left.sum(1), scale * right.sum(1)], 1)

    told = torch.stack([TX[:, :3].sum(1), 2 * TX[:, 3:].sum(1)], 1).argmax(-1)
    expected = (told == TY).double().mean().item()
    assert evaluate(Two(), (TX[:, :3], TX[:, 3:], TY)) == expected
    with pytest.raises(ConfigError, match=r"Linear.forward takes \['input'\], .* 2 unnamed inputs"):
        evaluate(nn.Linear(3, 2), (TX[:, :3], TX[:, 3:], TY))


def test_arrays_feed_a_model_of_transformers_by_position():
    config = ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=8, num_hidden_layers=1,
        num_attention_heads=1, intermediate_size=8, num_labels=10,
    )  # fmt: skip
    model, digits = ViTForImageClassification(config).eval(), load_dataset("digits", limit=40)
    arrays = digits["test"].with_format("numpy")[:]
    assert evaluate(model, (arrays["pixel_values"], arrays["labels"])) == evaluate(model, digits)


def test_texts_of_a_loader_are_padded_anew():
    ids = torch.tensor([[5, 6, 7], [8, 9, 0]])
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([0, 1])}
    long = {
        name: torch.nn.functional.pad(x, (0, 2)) if x.dim() > 1 else x for name, x in batch.items()
    }
    rows = read_rows(DataLoader([batch, long], batch_size=None))
    (read,) = rows.batches(4, pad_id=3)
    assert len(rows) == 4 and read["input_ids"].shape == (4, 5)
    assert read["attention_mask"].sum(1).tolist() == [3, 2, 3, 2]


def test_splits_may_be_of_any_kind():
    model = classifier()
    splits = {"train": (X, Y), "test": DataLoader(SET, batch_size=9)}
    assert evaluate(model, splits) == evaluate(model, SET)
    with pytest.raises(ConfigError, match=r"expected a split 'test', got \['train'\]"):
        evaluate(model, {"train": (X, Y)})


@pytest.mark.parametrize(
    "rows, message",
    [
        ((TX, TY[:9]), r"expected \(X, y\) of one length, .* 2 of \[50, 9\] rows"),
        ((TX,), "inputs first and labels last, got 1"),
        ([1, 2], "expected each row to be a mapping or .* got int"),
        (3, "expected rows as a data set, a DataLoader, .* got int"),
        ([(Image.new("L", (4, 4)), 1)], "got an image, which ToTensor"),
        ((TX, ["a"] * 50), "expected rows of numbers, got 'a'"),
        (DataLoader([(TX[0], TX[0])], batch_size=None), "yields one-dimensional items"),
        ({"x": TX, "target": TY}, r"a column 'labels' or 'label'.*, or \(inputs, labels\), got"),
        (
            pd.DataFrame({"x": Y, "kind": ["a"] * 50}),
            "got the columns 'x', 'kind'; .* label_column=",
        ),
        (
            (torch.where(torch.arange(50)[:, None] == 5, torch.nan, TX), TY),
            r"1 of 50 rows have blank cells or NaN \(row 5\)",
        ),
        (TX.numpy(), r"got ndarray in row 0; pass arrays as \(inputs, labels\)"),
        (
            TensorDataset,
            r"got the class TensorDataset; pass an instance, such as TensorDataset\(\)",
        ),
        ((SET, SET), r"got a tuple of 2 with data sets; pass one .* the splits: \{'train': \.\.\."),
        (pyarrow.table({"x": [1]}), r"got a pyarrow Table; pass a pandas frame, data\.to_pandas"),
        (
            Dataset.from_dict({"image": [Image.new("L", (4, 4))], "label": [0]}),
            "column 'image' holds images; set a transform",
        ),
        ("I like it. It is good", r"got the text 'I like it.*'; tokenize .*dict\(tokenizer\(\["),
        ("my rows.txt", r"got the name 'my rows.txt'; .*get_tokenized_dataset\(name, tokenizer"),
        ((["a b", "c d"], [0, 1]), r"got 'a b'; number classes, tokenize .* with their labels"),
        ("rows.npz", r"got the name 'rows.npz'; .*read_csv.*load_dataset, .*\(inputs, labels\)"),
    ],
)
def test_what_is_no_labeled_rows_is_one_sentence(rows, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read_rows(rows)
    assert "\n" not in str(caught.value)


def test_nested_tensors_are_rows_of_different_lengths():
    nested = torch.nested.nested_tensor([TX[0], TX[1, :3]], layout=torch.jagged)
    columns = read_columns((nested, TY[:2]))
    assert [row.tolist() for row in columns["input 0"]] == [TX[0].tolist(), TX[1, :3].tolist()]


def test_a_tuple_of_pairs_is_rows_as_a_list_of_them_is():
    x = torch.randn(2, 4)
    pairs = [(x[0], 0), (x[1], 1)]
    expected, found = read_columns(pairs), read_columns(tuple(pairs))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert torch.equal(found["labels"], torch.tensor([0, 1]))


class Two(nn.Module):
    """Two inputs of different shapes."""

    def forward(self, left, right):
        return torch.stack([left.sum((1, 2)), right.sum(1)], 1)


LEFT, RIGHT = TX[:, :4].reshape(50, 2, 2), TX[:, 4:]
NESTED = [((left, right), int(y)) for left, right, y in zip(LEFT, RIGHT, TY, strict=True)]


@pytest.mark.parametrize(
    "rows",
    [
        ((LEFT, RIGHT), TY),
        ((LEFT.numpy(), RIGHT.numpy()), Y.tolist()),
        NESTED,
        DataLoader(NESTED, batch_size=7),
        DataLoader(NESTED, batch_size=None),
        [((LEFT[i : i + 15], RIGHT[i : i + 15]), TY[i : i + 15]) for i in range(0, 50, 15)],
    ],
    ids=["arrays", "numpy", "rows", "loader", "loader of rows", "batches"],
)
def test_a_tuple_of_inputs_feeds_a_model_with_several(rows):
    expected = evaluate(Two(), {"left": LEFT, "right": RIGHT, "labels": TY})
    assert evaluate(Two(), rows) == expected


def test_a_batch_of_rows_of_different_lengths_is_one_input():
    rows = [(torch.ones(2 + i % 3), i % 2) for i in range(6)]
    loader = DataLoader(
        rows,
        3,
        collate_fn=lambda batch: [[x for x, _ in batch], torch.tensor([y for _, y in batch])],
    )
    assert [len(x) for x in read_columns(loader)["input 0"]] == [2, 3, 4, 2, 3, 4]


def test_a_tuple_with_an_array_a_label_is_the_rows_of_one_input():
    read = read_columns((tuple(TX), TY))
    assert torch.equal(read["input 0"], TX) and read.keys() == {"input 0", "labels"}


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_a_loader_of_several_inputs_and_several_outputs(size):
    rows = [((x, x[:2]), (y, x[0])) for x, y in SET]
    read = read_columns(DataLoader(rows, batch_size=size))
    assert list(read) == ["input 0", "input 1", "label of output_0", "label of output_1"]
    assert torch.equal(read["input 1"], TX[:, :2]) and torch.equal(read["label of output_0"], TY)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"x": {0: TX, 1: TX}, "labels": TY}, "got a mapping with 0, 1; pass each as a column"),
        ([([x, x[:2]], y) for x, y in SET], "got parts of different shapes"),
        (((TX, TX), None), "expected .* of arrays, got None for [Xy]; pass one value per row"),
        (((TX, TX), []), "of one length, inputs first and labels last, got 3 of"),
    ],
)
def test_nested_inputs_that_are_no_columns(rows, message):
    with pytest.raises(ConfigError, match=message):
        read_columns(rows)


def test_a_frame_without_labels_names_the_pair_that_works():
    frame = pd.DataFrame({"a": [1.0, 0.0], "b": [0.0, 1.0], "y": [0, 1]})
    with pytest.raises(ConfigError, match=r"such as \(frame\[inputs\], frame\['y'\]\) for labels"):
        evaluate(nn.Identity(), frame)
    assert evaluate(nn.Identity(), (frame[["a", "b"]], frame["y"])) == 1.0
