import numpy as np
import torch
from sklearn.datasets import load_digits

from chop.data import load_dataset, num_labels


def test_the_split_holds_every_image_once_and_each_digit_equally():
    splits = load_dataset("digits")
    assert (len(splits["train"]), len(splits["test"])) == (1437, 360)
    pixels = torch.cat([splits[name][:]["pixel_values"] for name in ("train", "test")])
    gray = ((pixels + 1) * 8).numpy().reshape(1797, 64)
    original = load_digits().data
    assert np.array_equal(np.unique(gray, axis=0), np.unique(original, axis=0))
    shares = torch.bincount(splits["test"][:]["labels"])
    assert shares.min() >= 34 and shares.max() <= 38


def test_rows_have_the_documented_types_and_are_exact_in_fixed_point():
    rows = load_dataset("digits")["test"][:8]
    assert rows["pixel_values"].shape == (8, 1, 8, 8)
    assert rows["pixel_values"].dtype == torch.float32
    assert rows["labels"].dtype == torch.int64
    eighths = rows["pixel_values"] * 8
    assert torch.equal(eighths, eighths.round())
    assert rows["pixel_values"].abs().max() <= 1


def test_two_loads_are_equal_and_the_classes_are_known():
    first, second = load_dataset("digits"), load_dataset("digits")
    assert torch.equal(first["test"][:]["pixel_values"], second["test"][:]["pixel_values"])
    assert num_labels(first) == 10
