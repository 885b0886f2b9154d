"""Masks: pictures of classes, one for each picture, as the labels of a data set.

Shapes: H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from chop.base.notices import assume
from chop.data.confined import Home, check_pictures
from chop.data.pictures import decoded
from chop.errors import MOST_NAMES, ConfigError, enumerate_names

if TYPE_CHECKING:
    from datasets import DatasetDict, Image

VOID = 255
"""The number of pixels without a class, unless a model has as many classes."""
IMAGES, MASKS = "images", "masks"
"""Folders of pictures and of their masks."""
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid"),
    "test": ("test", "testing"),
}
"""Splits, and the names of their folders."""
MASK_COLUMNS = ("mask", "masks", "annotation", "segmentation_mask")
"""Columns that hold masks where there is no column of labels."""
SUFFIXES = (".png", ".bmp", ".gif", ".jpg", ".jpeg", ".tif", ".tiff", ".webp")
ONE_NUMBER = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")
"""Modes of Pillow with one whole number for each pixel; of P it is the place in the palette."""


def has_masks(splits: DatasetDict) -> bool:
    """Returns true if the labels of a data set are pictures."""
    from datasets import Image

    features = splits["train"].features
    return any(isinstance(features.get(name), Image) for name in ("labels", "label"))


def with_masks_as_labels(splits: DatasetDict) -> DatasetDict:
    """Renames a column of masks to `labels` where another has pictures and none has labels."""
    from datasets import DatasetDict, Image

    features = next(iter(splits.values())).features
    pictures = [name for name, feature in features.items() if isinstance(feature, Image)]
    masks = [name for name in pictures if name in MASK_COLUMNS]
    if len(masks) != 1 or len(pictures) < 2 or {"labels", "label"} & features.keys():
        return splits
    return DatasetDict({k: split.rename_column(masks[0], "labels") for k, split in splits.items()})


def read_masks(folder: Path, home: Home) -> DatasetDict | None:
    """Reads a folder with `images` and `masks` of equal names.

    Both folders are beside each other in `folder` or in one for each split, or have one for each
    split themselves.

    Args:
        folder: to be read.
        home: folder in which its files may be.
    Returns: None where there are no two such folders.
    Raises:
        ConfigError: pictures or masks of other names, or a file elsewhere.
    """
    from datasets import DatasetDict

    pairs = _pairs_of_folders(folder)
    if not pairs:
        return None
    _tell_unread(folder, pairs)
    found = DatasetDict({split: _read_pair(*pair) for split, pair in pairs.items()})
    check_pictures(found, home)
    return found


def _pairs_of_folders(folder: Path) -> dict[str, tuple[Path, Path]]:
    """The folder of pictures and that of masks, by split."""
    top = _folders(folder)
    images, masks = (_folders(top.get(name)) for name in (IMAGES, MASKS))
    found = {}
    for split, names in SPLITS.items():
        given = []
        for name in names:
            own = _folders(top.get(name))
            pairs = (own.get(IMAGES), own.get(MASKS)), (images.get(name), masks.get(name))
            given += [(first, second) for first, second in pairs if first and second]
        if len(given) > 1:
            raise ConfigError(
                f"folders '{given[0][0]}' and '{given[1][0]}' are both of the split '{split}': "
                "expected one for each split."
            )
        if given:
            found[split] = given[0]
    if not found and IMAGES in top and MASKS in top:
        found["train"] = (top[IMAGES], top[MASKS])
    return found


def _folders(folder: Path | None) -> dict[str, Path]:
    """Folders in a folder by name in small letters."""
    inside = () if folder is None else sorted(folder.iterdir())
    return {path.name.lower(): path for path in inside if path.is_dir()}


def _tell_unread(folder: Path, pairs: Mapping[str, tuple[Path, Path]]) -> None:
    """Reports folders of pictures that are of no pair, such as a split without masks."""
    used = {place for pair in pairs.values() for place in pair}
    others = {path.parent for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES} - used
    if others:
        names = sorted(f"'{each.relative_to(folder)}'" for each in others)
        listed = enumerate_names(names, MOST_NAMES)
        assume(f"Pictures in {listed} are not read: they are of no split with images and masks.")


def _read_pair(images: Path, masks: Path) -> Any:
    from datasets import Dataset, Features, Image

    pictures, labels = _by_name(images), _by_name(masks)
    lonely = sorted(pictures.keys() ^ labels.keys())
    if lonely or not pictures:
        alone = enumerate_names(list(map(repr, lonely)), MOST_NAMES) or "none"
        others = pictures.keys() & labels.keys()
        hint = "" if others else "; folders of two classes need other names than these"
        raise ConfigError(
            f"'{images}' and '{masks}' are taken for pictures and their masks; names in only one "
            f"of them: {alone}. Give each picture a mask of its name, as {IMAGES}/1.jpg and "
            f"{MASKS}/1.png{hint}."
        )
    names = sorted(pictures)
    columns = {
        "image": [str(pictures[name].absolute()) for name in names],
        "labels": [str(labels[name].absolute()) for name in names],
    }
    return Dataset.from_dict(columns, Features({name: Image() for name in columns}))


def _by_name(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in SUFFIXES or path.name.startswith("."):
            continue
        if path.stem in found:
            raise ConfigError(
                f"'{found[path.stem]}' and '{path}' have one name: expected one picture of each."
            )
        found[path.stem] = path
    return found


def read_mask(value: Any, feature: Image, pixels: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """The classes of a mask's pixels, int64 (H, W).

    Args:
        value: file or picture of the mask, as `chop.data.pictures.decoded` takes it.
        feature: feature of its column.
        pixels: width and height of the picture that it is of.
        size: H and W of the result; masks of another size are scaled by the nearest pixel.
    Raises:
        ConfigError: it cannot be read, has colors, or is of another shape than its picture.
    """
    from PIL.Image import Resampling

    mask = decoded(value, feature)
    path = value.get("path") if isinstance(value, dict) else None
    name = f"mask '{path}'" if path else "a mask"
    if mask.mode not in ONE_NUMBER:
        raise ConfigError(
            f"{name} has colors ({mask.mode}): expected one number for each pixel, its class, as "
            "pictures in gray or with a palette have it."
        )
    width, height = mask.size
    if width * pixels[1] != height * pixels[0]:
        raise ConfigError(
            f"{name} has {width} x {height} pixels and its picture {pixels[0]} x {pixels[1]}: "
            "expected masks of the shape of their pictures."
        )
    if mask.size != size[::-1]:
        mask = mask.resize(size[::-1], Resampling.NEAREST)
    return torch.from_numpy(np.array(mask).astype(np.int64))


def without_void(mask: Tensor) -> Tensor:
    """The same mask with classes from 0 that counted from 1; 0 becomes 255, as 255 stays."""
    return torch.where((mask == 0) | (mask == VOID), VOID, mask - 1)
