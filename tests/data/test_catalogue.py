import types
import urllib.error

import numpy as np
import pytest
import sklearn.datasets
import torch
from datasets import Dataset, DatasetDict
from datasets import load_dataset as load_files
from PIL import Image

from chop.data import (
    DATASETS,
    describe_dataset,
    get_dataset_info,
    load_dataset,
    num_labels,
    with_pixels,
)
from chop.data.points import JET_CLASSES
from chop.errors import ConfigError, UnavailableError


@pytest.fixture
def picture_folder(tmp_path):
    """Twelve PNG files, 6 x 4 pixels, whose gray level is their class."""
    rows = []
    for i in range(12):
        path = tmp_path / f"{i}.png"
        Image.new("RGB", (6, 4), (i % 3 * 100,) * 3).save(path)
        rows.append({"img": {"path": None, "bytes": path.read_bytes()}, "label": i % 3})
    from datasets import ClassLabel, Features
    from datasets import Image as Picture

    features = Features(img=Picture(), label=ClassLabel(names=["a", "b", "c"]))
    data = Dataset.from_list(rows, features=features)
    folder = tmp_path / "pictures"
    DatasetDict(train=data, test=data).save_to_disk(folder)
    return folder


@pytest.mark.parametrize("name", ["toy", "digits", "reviews"])
def test_the_row_of_a_built_in_data_set_is_true(name):
    info, splits = get_dataset_info(name), load_dataset(name)
    row = splits["train"][0]
    assert num_labels(splits) == info.num_classes
    if info.kind == "vision":
        assert tuple(row["pixel_values"].shape) == info.image_size
    elif info.kind == "physical":
        assert row["x"].shape == (info.num_features,) and row["x"].dtype == torch.float32
    assert describe_dataset(name, splits) is DATASETS[name]


def test_an_unknown_data_set_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="unknown data set 'cifar-10': did you mean 'cifar10'"):
        get_dataset_info("cifar-10")


def test_toy_points_can_be_told_apart_and_are_the_same_every_time():
    first, again = load_dataset("toy"), load_dataset("toy")
    assert torch.equal(first["train"]["x"][:], again["train"]["x"][:])
    x, y = first["train"]["x"][:], first["train"]["labels"][:]
    torch.testing.assert_close(x.mean(0), torch.zeros(16), atol=1e-5, rtol=0)
    centers = torch.stack([x[y == label].mean(0) for label in range(5)])
    test_x, test_y = first["test"]["x"][:], first["test"]["labels"][:]
    nearest = torch.cdist(test_x, centers).argmin(1)
    assert (nearest == test_y).float().mean() > 0.9


def test_jets_are_fetched_standardized_and_numbered(monkeypatch):
    draw = np.random.default_rng(0)
    target = np.array(JET_CLASSES * 20, dtype=object)
    table = types.SimpleNamespace(data=draw.normal(3, 2, size=(100, 16)), target=target)
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", lambda *a, **k: table)
    splits = load_dataset("jsc")
    assert (len(splits["train"]), len(splits["test"])) == (80, 20)
    assert splits["train"].features["labels"].names == list("gqtwz")
    x = splits["train"]["x"][:]
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(16), atol=1e-4, rtol=0)


def test_jets_without_a_network_point_at_the_toy(monkeypatch):
    def refuse(*args, **kwargs):
        asked.append(args)
        raise urllib.error.URLError("no route")

    asked = []
    monkeypatch.setattr("sklearn.datasets._openml.urlopen", refuse)
    monkeypatch.setattr("sklearn.datasets._openml.time.sleep", lambda seconds: None)
    with pytest.raises(UnavailableError, match="openml.org, which cannot be reached; 'toy'"):
        load_dataset("jsc")
    assert asked  # scikit-learn takes the arguments


def test_pictures_become_normalized_tensors(picture_folder):
    splits = load_dataset(picture_folder)
    info = describe_dataset(str(picture_folder), splits)
    assert (info.kind, info.num_classes, info.image_size) == ("vision", 3, (3, 4, 6))
    row = with_pixels(splits, info)["train"][2]
    assert row["labels"] == 2 and row["pixel_values"].shape == (3, 4, 6)
    torch.testing.assert_close(row["pixel_values"], torch.full((3, 4, 6), (200 / 255 - 0.5) / 0.5))
    gray = with_pixels(splits, info, (1, 8, 8))["train"][1]["pixel_values"]
    assert gray.shape == (1, 8, 8)
    torch.testing.assert_close(gray, torch.full((1, 8, 8), (100 / 255 - 0.5) / 0.5))


def test_pictures_without_labels_become_tensors(tmp_path):
    for number in range(4):
        Image.new("RGB", (6, 4), (number, 0, 0)).save(tmp_path / f"{number}.png")
    splits = load_dataset(tmp_path, labeled=False)
    info = describe_dataset("flat", splits)
    assert (info.kind, info.num_classes) == ("vision", 0)
    row = with_pixels(splits, info)["train"][0]
    assert list(row) == ["pixel_values"] and row["pixel_values"].shape == (3, 4, 6)


def test_other_columns_are_described_by_what_they_hold():
    text = Dataset.from_dict({"sentence": ["a", "b"], "label": [0, 1]})
    vectors = Dataset.from_dict({"v": [[1.0, 2.0, 3.0]] * 4, "label": [0, 1, 2, 3]})
    assert describe_dataset("mine", DatasetDict(train=text)).kind == "nlp"
    info = describe_dataset("mine", DatasetDict(train=vectors))
    assert (info.kind, info.num_features, info.num_classes) == ("physical", 3, 4)
    two = vectors.add_column("w", [[1.0]] * 4)
    numbers = Dataset.from_dict({"v": [1.0, 2.0], "label": [0, 1]})
    for odd in (two, numbers):
        with pytest.raises(ConfigError, match="column of text, of images, or one of vectors"):
            describe_dataset("mine", DatasetDict(train=odd))


@pytest.mark.data
def test_real_pictures_have_the_statistics_of_their_row(data_folder):
    files = {name: str(data_folder / "cifar10-jpeg" / "test.parquet") for name in ("train", "test")}
    splits = load_files("parquet", data_files=files)
    info = get_dataset_info("cifar10")
    pixels = torch.stack(
        [row["pixel_values"] for row in with_pixels(splits, info)["test"].select(range(400))]
    )
    assert pixels.shape == (400, 3, 32, 32)
    assert pixels.mean().abs() < 0.1 and (pixels.std() - 1).abs() < 0.1
