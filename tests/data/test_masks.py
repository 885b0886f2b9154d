"""Pictures with masks: folders, tables, and what is wrong with them."""

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict, Features, Image
from PIL import Image as Pictures

from chop.base.notices import collected_assumptions
from chop.data import has_masks, load_dataset, picture_column, with_pixels
from chop.data.catalogue import describe_dataset
from chop.data.masks import without_void
from chop.errors import ConfigError
from chop.train import read_rows
from chop.workloads.load import load_workload
from chop.workloads.settings import WorkloadConfig


def save(place, pixels):
    place.parent.mkdir(parents=True, exist_ok=True)
    Pictures.fromarray(pixels).save(place)


def drawn(count, size=(6, 8)):
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (count, *size, 3)).astype(np.uint8)
    return pixels, draw.integers(0, 4, (count, *size)).astype(np.uint8)


def write(folder, names, size=(6, 8), count=5, mask_end="png"):
    pixels, masks = drawn(count, size)
    for i in range(count):
        save(folder / names[0] / f"{i}.png", pixels[i])
        save(folder / names[1] / f"{i}.{mask_end}", masks[i])
    return pixels, masks


def get_rows(data):
    data = with_pixels(data, describe_dataset("own", data))
    return {name: read_rows(split) for name, split in data.items()}


@pytest.mark.parametrize(
    "layout",
    [
        {"train": ("images", "masks")},
        {"train": ("train/images", "train/masks"), "test": ("test/images", "test/masks")},
        {
            "train": ("images/training", "masks/training"),
            "test": ("images/testing", "masks/testing"),
            "validation": ("images/val", "masks/val"),
        },
    ],
)
def test_folders_of_pictures_and_masks(tmp_path, layout):
    for names in layout.values():
        pixels, masks = write(tmp_path / "shapes", names, mask_end="bmp")
    (tmp_path / "shapes" / layout["train"][0] / ".hidden.png").write_bytes(b"")
    data = load_dataset(tmp_path / "shapes")
    assert has_masks(data) and picture_column(data) == "image"
    assert {*data} == {"train", "test", *layout}
    rows = get_rows(data)
    assert rows["train"].task.name == "segmentation"
    if len(layout) > 1:
        assert torch.equal(rows["test"].labels, torch.tensor(masks.astype(np.int64)))
        wanted = torch.tensor(pixels).permute(0, 3, 1, 2) / 255
        assert torch.equal(rows["test"].columns["pixel_values"], (wanted - 0.5) / 0.5)


def test_masks_are_scaled_by_the_nearest_pixel(tmp_path):
    write(tmp_path, ("images", "masks"), size=(4, 4))
    labels = drawn(5, (4, 4))[1]
    save(tmp_path / "masks" / "0.png", labels[0].repeat(2, 0).repeat(2, 1))
    data = load_dataset(tmp_path)
    data = with_pixels(data, describe_dataset("own", data), (3, 8, 8))
    both = torch.cat([read_rows(split).labels for split in data.values()])
    assert both.shape == (5, 8, 8)
    wanted = {tuple(x.repeat(2, 0).repeat(2, 1).flatten()) for x in labels}
    assert {tuple(x.flatten().tolist()) for x in both} == wanted


@pytest.mark.parametrize("names", [("image", "mask"), ("image", "annotation"), ("x", "label")])
def test_tables_with_a_column_of_masks(tmp_path, names):
    pixels, masks = drawn(4)
    columns = {
        names[0]: [Pictures.fromarray(x) for x in pixels],
        names[1]: [Pictures.fromarray(x) for x in masks],
    }
    features = Features({name: Image() for name in names})
    table = Dataset.from_dict(columns, features)
    DatasetDict(train=table, test=table).save_to_disk(tmp_path / "saved")
    for given in (tmp_path / "saved", DatasetDict(train=table, test=table)):
        rows = get_rows(load_dataset(given))
        assert torch.equal(rows["test"].labels, torch.tensor(masks.astype(np.int64)))
    other = Features({"a": Image(), "b": Image()})
    table = Dataset.from_dict(dict(zip("ab", columns.values(), strict=True)), other)
    with pytest.raises(ConfigError, match="no column 'labels' or 'label'.*--label-column"):
        load_dataset(DatasetDict(train=table, test=table))
    rows = get_rows(load_dataset(DatasetDict(train=table, test=table), label="b"))
    assert torch.equal(rows["test"].labels, torch.tensor(masks.astype(np.int64)))


@pytest.mark.parametrize("mode", ["1", "L", "P", "I;16"])
def test_modes_of_masks(tmp_path, mode):
    write(tmp_path, ("images", "masks"))
    mask = np.eye(6, 8, dtype=np.uint8) * (255 if mode == "1" else 1)
    picture = Pictures.fromarray(mask)
    if mode == "P":
        picture.putpalette([7, 7, 7, 200, 0, 0])
    else:
        wide = mode == "I;16"
        picture = Pictures.fromarray(mask.astype(np.uint16)) if wide else picture.convert(mode)
    assert picture.mode == mode
    for i in range(5):
        picture.save(tmp_path / "masks" / f"{i}.png")
    rows = get_rows(load_dataset(tmp_path))
    assert torch.equal(rows["train"].labels[0], torch.eye(6, 8).long())


def test_classes_that_count_from_1(tmp_path):
    _, masks = write(tmp_path / "a", ("train/images", "train/masks"))
    write(tmp_path / "a", ("test/images", "test/masks"))
    data = load_dataset(tmp_path / "a")
    data = with_pixels(data, describe_dataset("own", data), reduce_labels=True)
    wanted = torch.tensor(masks.astype(np.int64)) - 1
    assert torch.equal(read_rows(data["test"]).labels, wanted.where(wanted >= 0, 255))
    given = torch.tensor([[0, 1, 255]])
    assert without_void(given).tolist() == [[255, 0, 255]]


def test_what_is_wrong_is_one_sentence(tmp_path):
    write(tmp_path / "a", ("images", "masks"))
    (tmp_path / "a/masks/3.png").unlink()
    with pytest.raises(ConfigError, match=r"names differ \('3'\)\. Each image needs a"):
        load_dataset(tmp_path / "a")
    write(tmp_path / "b", ("images", "masks"))
    for i in range(5):
        (tmp_path / f"b/masks/{i}.png").rename(tmp_path / f"b/masks/m{i}.png")
    with pytest.raises(
        ConfigError, match=r"differ \(('m?\d', ){5}'m?\d' and 4 more\).*folders of classes need"
    ):
        load_dataset(tmp_path / "b")
    for mask in (tmp_path / "b/masks").iterdir():
        mask.rename(mask.with_suffix(".npy"))
    with pytest.raises(ConfigError, match=r"masks' has no images, but files such as 'm0\.npy'"):
        load_dataset(tmp_path / "b")
    write(tmp_path / "c", ("images", "masks"))
    save(tmp_path / "c/masks/2.png", drawn(1)[0][0])
    with pytest.raises(ConfigError, match=r"2\.png' has colors \(RGB\); expected a class number"):
        get_rows(load_dataset(tmp_path / "c"))
    write(tmp_path / "d", ("images", "masks"))
    save(tmp_path / "d/masks/2.png", np.zeros((4, 4), np.uint8))
    with pytest.raises(ConfigError, match="has 4 x 4 pixels and its image 8 x 6; expected"):
        get_rows(load_dataset(tmp_path / "d"))
    write(tmp_path / "e", ("images", "masks"))
    save(tmp_path / "e/images/2.bmp", drawn(1)[0][0])
    with pytest.raises(ConfigError, match="have the same name; expected one image"):
        load_dataset(tmp_path / "e")
    write(tmp_path / "f", ("images", "masks"))
    (tmp_path / "f/masks/2.png").write_bytes(b"no picture")
    with pytest.raises(ConfigError, match=r"2\.png' cannot be read: its format is unknown"):
        get_rows(load_dataset(tmp_path / "f"))


def test_pictures_that_are_in_no_split_are_told(tmp_path):
    write(tmp_path / "a", ("Train/Images", "Train/Masks"))
    write(tmp_path / "a", ("dev/images", "dev/masks"))
    write(tmp_path / "a", ("test/images", "elsewhere"))
    with collected_assumptions() as told:
        data = load_dataset(tmp_path / "a")
    assert has_masks(data) and len(data["train"]) + len(data["test"]) == 5
    (text,) = [each.text for each in told if "are not read" in each.text]
    assert "'dev/images', 'dev/masks', 'elsewhere'" in text and "'test/images'" in text


def test_two_folders_of_a_split_are_refused(tmp_path):
    for name in ("train", "val", "valid"):
        write(tmp_path, (f"{name}/images", f"{name}/masks"))
    with pytest.raises(ConfigError, match="both belong to the split 'validation'; expected one"):
        load_dataset(tmp_path)


def test_files_elsewhere_are_not_read(tmp_path):
    write(tmp_path / "a", ("images", "masks"))
    save(tmp_path / "secret.png", drawn(1)[1][0])
    (tmp_path / "a/masks/2.png").unlink()
    (tmp_path / "a/masks/2.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(ConfigError, match="secret|outside|2.png"):
        load_dataset(tmp_path / "a")


def test_masks_of_another_size_are_reported_once(tmp_path):
    write(tmp_path, ("images", "masks"), size=(4, 4))
    for number in range(2):  # cut to a quarter
        save(tmp_path / "masks" / f"{number}.png", drawn(1, (2, 2))[1][0])
    data = load_dataset(tmp_path)
    with collected_assumptions() as assumed:
        data = with_pixels(data, describe_dataset("own", data), (3, 4, 4))
        list(data["train"]), list(data["test"])
    (note,) = assumed
    assert "has 2 x 2 pixels and its image 4 x 4" in note.text


def test_masks_in_jpeg_files_are_reported(tmp_path):
    write(tmp_path, ("images", "masks"), size=(4, 4), mask_end="jpg")
    data = load_dataset(tmp_path)
    with collected_assumptions() as assumed:
        list(with_pixels(data, describe_dataset("own", data), (3, 4, 4))["train"])
    assert [each.text[:20] for each in assumed] == ["Masks in JPEG files "]


@pytest.mark.parametrize("place", ["", "train/"])
def test_a_folder_of_masks_with_another_name_is_no_class(tmp_path, place):
    write(tmp_path, (f"{place}images", f"{place}labels"), size=(4, 4))
    with pytest.raises(ConfigError, match="labels' has the file names of .*rename it to 'masks'"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("places", [("train/images", "train/labels"), ("images/val", "labels/val")])
def test_texts_beside_images_are_boxes_and_no_masks(tmp_path, places):
    write(tmp_path, places, size=(4, 4))
    for path in (tmp_path / places[1]).iterdir():
        path.rename(path.with_suffix(".txt"))
    with pytest.raises(ConfigError, match="labels' has a text for each image, .* not supported"):
        load_dataset(tmp_path)


def test_masks_are_no_classes_of_images(tmp_path):
    write(tmp_path, ("images", "masks"), size=(4, 4))
    (tmp_path / "net.py").write_text("from torch import nn\nNet = lambda: nn.Conv2d(3, 2, 1)\n")
    settings = {"task": "classification", "out": tmp_path / "out"}
    with pytest.raises(ConfigError, match="task: 'classification' has no masks as labels"):
        load_workload(WorkloadConfig(f"{tmp_path}/net.py:Net", str(tmp_path), **settings))
