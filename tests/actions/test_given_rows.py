"""Rows that `chop.compress` is given, by the column and scale of their labels."""

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader

import chop
from chop.actions.given_rows import rows_by_split, with_label_column
from chop.errors import ConfigError
from chop.train import read_rows

SETTINGS = {"formats": ("8.auto",), "bench_seconds": 0, "max_drop": 0.05}


@pytest.fixture
def house():
    """A model of standardized prices that is right, its inputs and whole prices."""
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    weight = torch.tensor([1.0, -2.0, 0.5])
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 1, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(3))
        net[1].weight.copy_(weight[None])
    return net, x, (250_000 + 60_000 * (x @ weight)).round().long()


def frame_of(x, y):
    return pd.DataFrame(x.numpy(), columns=["rooms", "age", "area"]).assign(price=y.numpy())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["pair", "frame"])
def test_labels_of_given_rows_are_standardized(house, kind, tmp_path):
    net, x, y = house
    scale = {"task": "regression", "label_mean": 250_000, "label_std": 60_000}
    named = {"label_column": "price"} if kind == "frame" else {}
    data = frame_of(x, y) if kind == "frame" else (x, y)
    found = chop.compress(net, data, out=tmp_path, **scale, **named, **SETTINGS)
    assert found.result["rows"][0]["r2"] > 0.999


def test_the_column_of_the_labels_of_each_kind_of_rows(house):
    _, x, y = house
    frame = frame_of(x, y).assign(label=1)
    table = {"x": x, "price": y, "labels": y}
    assert list(with_label_column(frame, "price").columns) == ["rooms", "age", "area", "labels"]
    assert with_label_column(table, "price").keys() == {"x", "labels"}
    assert with_label_column(table, "price")["labels"] is y
    rows = Dataset.from_dict({"x": [1.0], "price": [2], "label": [3]})
    assert with_label_column(rows, "price").column_names == ["x", "labels"]
    loader = DataLoader([{"x": row, "price": label} for row, label in zip(x, y, strict=True)], 2)
    for given in (loader, loader.dataset):
        assert with_label_column(given, "price")["labels"].tolist() == y.tolist()
    splits = with_label_column({"train": frame, "test": rows}, "price")
    assert "labels" in splits["train"].columns and "labels" in splits["test"].column_names
    assert with_label_column((x, y), None) == (x, y)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"label_column": "prize"}, "^label column 'prize': did you mean 'price'"),
        ({"pixel_mean": (0.5,)}, "leave out pixel_mean, which applies to models and data"),
        ({"label": "price"}, "unknown key 'label': did you mean 'label_column'"),
        ({"weights_only": True}, r"'weights_only': pass operands=\[\"weight\"\]"),
        ({"limit": 10}, "leave out limit, which applies to models and data"),
        ({"train_epochs": 1}, "leave out train_epochs, which applies to models and data"),
        ({"label_column": "price", "device": "nonesuch"}, "device 'nonesuch'"),
        (
            {"label_column": "price", "label_mean": 1.0},
            "label_mean and label_std: they apply",
        ),
    ],
)
def test_settings_that_given_rows_cannot_honor_are_refused(house, given, told, tmp_path):
    net, x, y = house
    with pytest.raises(ConfigError, match=told):
        chop.compress(net, frame_of(x, y), out=tmp_path, **given, **SETTINGS)


def test_rows_of_objects_that_are_numbers_are_read(house):
    _, x, y = house
    rows = read_rows((x.numpy().astype(object), y.numpy().astype(object)))
    assert torch.equal(rows.columns["input 0"], x) and torch.equal(rows.labels, y)
    with pytest.raises(ConfigError, match="expected rows of numbers"):
        read_rows((np.array([["a", 1.0]], object), np.array([1])))


def test_a_name_in_the_place_of_rows(house, tmp_path):
    with pytest.raises(ConfigError, match=r"got the name 'a.csv': read it first"):
        chop.compress(house[0], "a.csv", label_column="price", out=tmp_path, **SETTINGS)


def test_a_pair_has_no_column_of_labels(house, tmp_path):
    net, x, y = house
    with pytest.raises(ConfigError, match=r"got tuple; pass \(inputs, labels\)"):
        chop.compress(net, (x, y), label_column="price", out=tmp_path, **SETTINGS)


@pytest.mark.parametrize("kind", ["frame", "mapping", "data set"])
def test_several_columns_of_labels(kind):
    table = {"a": [0.5, 1.5], "rain": [0, 1], "snow": [True, False], "labels": [9, 9]}
    kinds = {"frame": pd.DataFrame, "data set": Dataset.from_dict}
    data = kinds.get(kind, lambda given: {name: np.array(x) for name, x in given.items()})(table)
    rows = read_rows(with_label_column(data, "rain, snow"))
    assert rows.labels.tolist() == [[0, 1], [1, 0]] and len(rows.columns) == 1
    for label, message in (
        ("rain,rain", " is given t"),
        ("rain,snw", ": did you mean 'snow'"),
    ):
        with pytest.raises(ConfigError, match=f"label column '{label[5:]}'{message}"):
            with_label_column(data, label)


@pytest.mark.parametrize("kind", ["sklearn", "keras"])
def test_split_arrays_are_training_and_test_rows(kind):
    x, y = torch.arange(10.0)[:, None], torch.arange(10)
    parts = x[:7], x[7:], y[:7], y[7:]
    given = [*parts] if kind == "sklearn" else ((x[:7], y[:7]), (x[7:], y[7:]))
    splits = rows_by_split(given, None)
    assert {*splits} == {"train", "test"}
    for name, rows in {"train": slice(7), "test": slice(7, None)}.items():
        assert torch.equal(splits[name][0], x[rows]) and torch.equal(splits[name][1], y[rows])


def test_parts_of_one_length_are_not_splits():
    x, y = torch.zeros(6, 2), torch.zeros(6)
    for given in ((x, x, x, y), ((x, x), (y, y)), [(x, y), (x[:2], y[:2])][:1]):
        assert rows_by_split(given, None) == {"train": given}


@pytest.mark.parametrize("test", [0.2, True])
def test_a_share_in_place_of_test_rows_is_refused(test):
    with pytest.raises(ConfigError, match="test: expected labeled rows, .*leave it out to split"):
        rows_by_split((np.zeros((4, 2)), np.zeros(4)), test)
