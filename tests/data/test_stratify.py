"""Stratified splits, beside scikit-learn."""

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from sklearn.model_selection import train_test_split

from chop.data import load_dataset
from chop.data.stratify import stratified_split
from chop.train import read_rows, split_rows

RARE = [0] * 60 + [1] * 37 + [2] * 3


@pytest.mark.parametrize("sizes", [(50, 50), (80, 20), (60, 37, 13), (90, 6, 4)])
@pytest.mark.parametrize("seed", [0, 1])
def test_counts_of_classes_are_those_of_scikit_learn(sizes, seed):
    classes = np.repeat(np.arange(len(sizes)), sizes)
    order = np.random.default_rng(seed).permutation(len(classes))
    first, others = stratified_split(order, classes, 20)
    _, expected = train_test_split(classes, test_size=20, stratify=classes, random_state=seed)
    assert np.bincount(classes[first]).tolist() == np.bincount(expected).tolist()
    assert sorted([*first, *others]) == list(range(len(classes)))


def test_a_rare_class_is_in_both_parts_and_a_single_row_is_not_divided():
    classes = np.array([0] * 96 + [1, 1, 1, 2])
    order = np.random.default_rng(0).permutation(100)
    first, others = stratified_split(order, classes, 10)
    assert len(first) == 10 and np.bincount(classes[first]).tolist() == [9, 1]
    assert np.bincount(classes[others]).tolist() == [87, 2, 1]


def test_more_classes_than_rows_are_not_stratified():
    first, others = stratified_split(np.arange(10), np.arange(10), 2)
    assert first.tolist() == [0, 1] and others.tolist() == list(range(2, 10))


def test_rows_that_are_split_off_have_each_class():
    for seed in range(8):
        rows = read_rows((torch.arange(100.0)[:, None], torch.tensor(RARE)))
        train, validation = split_rows(rows, seed=seed, stratify=True)
        assert torch.bincount(validation.labels).tolist() == [12, 7, 1]
        assert torch.bincount(train.labels).tolist() == [48, 30, 2]
        again = split_rows(rows, seed=seed, stratify=True)[1]
        assert all(torch.equal(again.columns[k], x) for k, x in validation.columns.items())


def test_test_rows_of_a_table_have_each_class():
    names = np.array(["a", "b", "rare"])[RARE].tolist()
    table = Dataset.from_dict({"x": list(range(100)), "label": names})
    splits = load_dataset(DatasetDict(train=table))
    counts = {name: splits["test"]["label"][:].count(name) for name in ("a", "b", "rare")}
    assert counts == {"a": 12, "b": 7, "rare": 1}
    assert splits["test"]["x"][:] == load_dataset(DatasetDict(train=table))["test"]["x"][:]
    assert not {*splits["test"]["x"]} & {*splits["train"]["x"]}
