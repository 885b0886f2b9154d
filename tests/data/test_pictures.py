"""Pictures in files, and what is said of one that is broken."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, Features, Value
from datasets import Image as Picture
from PIL import Image

from chop.base.notices import collected_assumptions
from chop.data import describe_dataset, load_dataset, with_pixels
from chop.errors import ConfigError


def png(shade=0):
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (shade, 7, shade)).save(file, "png")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Two classes of ten pictures."""
    for number in range(20):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
    return tmp_path / "pictures"


def read_all(folder):
    splits = load_dataset(folder)
    data = with_pixels(splits, describe_dataset(str(folder), splits))
    return [row["pixel_values"].shape for split in data.values() for row in split]


def test_a_metadata_file_needs_names_of_images(folder):
    (folder / "metadata.jsonl").write_text(json.dumps({"filename": "1.png", "label": "a"}))
    with pytest.raises(ConfigError, match="metadata file without a column 'file_name'.*; rename"):
        load_dataset(folder)


def test_whole_pictures_are_read(folder):
    assert read_all(folder) == [(3, 16, 16)] * 20


BROKEN = {
    "empty": b"",
    "text": b"<html>not found</html>",
    "cut short": png()[:-30],
    "damaged": png().replace(b"IDAT", b"IDAX"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("name", ["a/0.png", "b/11.png"])
def test_one_broken_picture_is_named(kind, name, folder):
    (folder / name).write_bytes(BROKEN[kind])
    reason = "it is empty" if kind == "empty" else ""
    with pytest.raises(ConfigError, match=f"image '.*{name}' cannot be read: {reason}.*remove it"):
        read_all(folder)


@pytest.mark.parametrize(
    "value, told",
    [
        (None, "a row of the data has no image"),
        ({"path": None, "bytes": b"text"}, "an image of 4 bytes cannot be read: its format"),
        ({"path": "x.png", "bytes": b"text"}, "image 'x.png' cannot be read: its format"),
    ],
)
def test_one_without_a_file_is_told_too(value, told):
    rows = {"image": [{"path": None, "bytes": png()}, value] * 5, "label": [0, 1] * 5}
    data = Dataset.from_dict(rows, features=Features(image=Picture(), label=Value("int64")))
    splits = DatasetDict(train=data, test=data)
    with pytest.raises(ConfigError, match=told):
        list(with_pixels(splits, describe_dataset("mine", splits))["train"])


def test_16_bit_pixels_keep_their_precision(tmp_path):
    rows = np.random.default_rng(0).integers(0, 2**16, (8, 4, 4)).astype(np.uint16)
    for number, pixels in enumerate(rows):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    splits = load_dataset(tmp_path)
    info = replace(describe_dataset("16", splits), pixel_mean=(0.0,), pixel_std=(1.0,))
    with collected_assumptions() as assumed:
        for channels in (1, 3):
            data = with_pixels(splits, info, (channels, 4, 4))
            read = np.stack([row["pixel_values"].numpy() for row in data["train"]])
            assert read.shape[1] == channels
            for each in read:  # in the order of the split
                nearest = np.abs(rows / 65535 - each[:1]).max((1, 2)).min()
                assert nearest < 1e-6
    assert [each.text for each in assumed] == [
        "Pixels of 16-bit images are divided by 65535, so that they are from 0 to 1."
    ]
    Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(tmp_path / "a/0.tif")
    (tmp_path / "a/0.png").unlink()
    splits = load_dataset(tmp_path)
    with pytest.raises(ConfigError, match="pixels of 32 bits"):
        list(with_pixels(splits, info, (1, 4, 4))["train"])


def test_only_the_first_frame_of_an_animation_is_read(folder):
    frames = [Image.new("L", (16, 16), shade) for shade in (0, 255)]
    frames[0].save(folder / "a/x.gif", save_all=True, append_images=frames[1:])
    (folder / "c").mkdir()
    with collected_assumptions() as assumed:
        read_all(folder)
    assert "Only the first frame" in str(assumed)
    assert f"Not read from '{folder}': 'c'" in str(assumed)
