"""Pictures in files, and what is said of one that is broken."""

import io

import pytest
from datasets import Dataset, DatasetDict, Features, Value
from datasets import Image as Picture
from PIL import Image

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
    with pytest.raises(ConfigError, match=f"image '.*{name}' cannot be read: .*remove it"):
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
