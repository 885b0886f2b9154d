"""Segmentation masks: images of classes that are the labels of images.

Shapes: H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from chop.base.notices import assume, current_assumptions
from chop.data.confined import Home, check_pictures
from chop.data.pictures import decoded
from chop.data.splits import check_splits
from chop.errors import MOST_NAMES, ConfigError, enumerate_names

if TYPE_CHECKING:
    from datasets import DatasetDict, Image

VOID = 255
"""Mask value of pixels without a class, unless the model has that many classes."""
IMAGES, MASKS = "images", "masks"
"""Folder names of images and of their masks."""
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid"),
    "test": ("test", "testing"),
}
"""Folder names of splits."""
OTHER_SIZE = "masks of another size"
"""Key of the assumption that masks are scaled to their images."""
MASK_COLUMNS = ("mask", "masks", "annotation", "segmentation_mask")
"""Columns used as masks if there is no label column."""
MAX_LISTED = 6
"""Maximum number of files or columns that a message lists."""
SUFFIXES = (".png", ".bmp", ".gif", ".jpg", ".jpeg", ".tif", ".tiff", ".webp")
ONE_NUMBER = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")
"""Pillow modes with one integer per pixel; for P it is the palette index."""


def has_masks(splits: DatasetDict) -> bool:
    """Returns true if the labels of a data set are images."""
    check_splits(splits)
    from datasets import Image

    features = splits["train"].features
    return any(isinstance(features.get(name), Image) for name in ("labels", "label"))


def with_masks_as_labels(splits: DatasetDict) -> DatasetDict:
    """Renames a mask column to `labels` if there are images and no label column."""
    from datasets import DatasetDict, Image

    features = next(iter(splits.values())).features
    pictures = [name for name, feature in features.items() if isinstance(feature, Image)]
    masks = [name for name in pictures if name in MASK_COLUMNS]
    if len(masks) != 1 or len(pictures) < 2 or {"labels", "label"} & features.keys():
        return splits
    return DatasetDict({k: split.rename_column(masks[0], "labels") for k, split in splits.items()})


def read_masks(folder: Path, home: Home) -> DatasetDict | None:
    """Reads a folder with images in `images` and equally named masks in `masks`.

    The two folders are either in `folder`, in a folder per split, or have a folder per split.

    Args:
        folder: folder to read.
        home: folder that must contain the files.
    Returns: None if there are no two such folders.
    Raises:
        ConfigError: if image and mask names differ, the folder of masks has another name, or a file
            is outside the folder.
    """
    from datasets import DatasetDict

    pairs = _pairs_of_folders(folder)
    if not pairs:
        top = _folders(folder)
        for folders in (top, *map(_folders, top.values())):
            _check_is_named(folders)
        return None
    _report_unread(folder, pairs)
    splits = DatasetDict({split: _read_pair(*pair) for split, pair in pairs.items()})
    check_pictures(splits, home)
    return splits


def _pairs_of_folders(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Returns the image folder and the mask folder by split."""
    top = _folders(folder)
    images, masks = (_folders(top.get(name)) for name in (IMAGES, MASKS))
    folders = {}
    for split, names in SPLITS.items():
        given = []
        for name in names:
            own = _folders(top.get(name))
            pairs = (own.get(IMAGES), own.get(MASKS)), (images.get(name), masks.get(name))
            given += [(first, second) for first, second in pairs if first and second]
        if len(given) > 1:
            raise ConfigError(
                f"folders '{given[0][0]}' and '{given[1][0]}' both belong to the split '{split}'; "
                "expected one per split."
            )
        if given:
            folders[split] = given[0]
    if not folders and IMAGES in top and MASKS in top:
        folders["train"] = (top[IMAGES], top[MASKS])
    return folders


def _check_is_named(folders: Mapping[str, Path]) -> None:
    """Raises ConfigError if the masks of `images` have another folder, or are texts of boxes."""
    if IMAGES not in folders or len(folders) != 2:
        return
    (other,) = folders.keys() - {IMAGES}
    files = {name: [x for x in folders[name].rglob("*") if x.is_file()] for name in folders}
    names, others = ({path.stem for path in files[name]} for name in (IMAGES, other))
    suffixes = {path.suffix.lower() for path in files[other]}
    if names & others and suffixes == {".txt"}:
        raise ConfigError(
            f"'{folders[other]}' has a text for each image, as boxes of object detection have, "
            "which are not supported. To classify images, expected one folder of images per class."
        )
    if names and names == others and suffixes.issubset(SUFFIXES):
        raise ConfigError(
            f"'{folders[other]}' has the file names of '{folders[IMAGES]}', as masks have; rename "
            f"it to '{MASKS}'. Folders of classes need other names than '{IMAGES}'."
        )


def _folders(folder: Path | None) -> dict[str, Path]:
    """Returns the subfolders of a folder by lower-case name."""
    inside = () if folder is None else sorted(folder.iterdir())
    return {path.name.lower(): path for path in inside if path.is_dir()}


def _report_unread(folder: Path, pairs: Mapping[str, tuple[Path, Path]]) -> None:
    """Reports image folders without a partner, such as a split without masks."""
    used = {place for pair in pairs.values() for place in pair}
    others = {path.parent for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES} - used
    if others:
        names = sorted(f"'{each.relative_to(folder)}'" for each in others)
        listed = enumerate_names(names, MOST_NAMES)
        assume(
            f"Images in {listed} are not read, since their split has no pair of images and masks."
        )


def _read_pair(images: Path, masks: Path) -> Any:
    from datasets import Dataset, Features, Image

    pictures, labels = _by_name(images), _by_name(masks)
    lonely = sorted(pictures.keys() ^ labels.keys())
    for place, files in ((images, pictures), (masks, labels)):
        unread = sorted(path.name for path in place.iterdir() if path.is_file())
        if unread and not files:
            raise ConfigError(
                f"'{place}' has no images, but files such as '{unread[0]}'; save them as images, "
                "such as .png."
            )
    if lonely or not pictures:
        alone = enumerate_names(list(map(repr, lonely)), MAX_LISTED) or "none"
        others = pictures.keys() & labels.keys()
        hint = "" if others else "; folders of classes need other names"
        raise ConfigError(
            f"'{images}' and '{masks}' are read as images and masks, but their names differ "
            f"({alone}). Each image needs a mask with its name, such as {IMAGES}/1.jpg and "
            f"{MASKS}/1.png{hint}."
        )
    names = sorted(pictures)
    columns = {
        "image": [str(pictures[name].absolute()) for name in names],
        "labels": [str(labels[name].absolute()) for name in names],
    }
    return Dataset.from_dict(columns, Features({name: Image() for name in columns}))


def _by_name(folder: Path) -> dict[str, Path]:
    by_name: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in SUFFIXES or path.name.startswith("."):
            continue
        if path.stem in by_name:
            raise ConfigError(
                f"'{by_name[path.stem]}' and '{path}' have the same name; expected one "
                "image per name."
            )
        by_name[path.stem] = path
    return by_name


def read_mask(value: Any, feature: Image, pixels: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Decodes a mask to classes, int64 (H, W).

    Args:
        value: file or image of the mask, in the form of `chop.data.pictures.decoded`.
        feature: feature of its column.
        pixels: width and height of its image.
        size: H and W of the result; masks are scaled with nearest-pixel interpolation.
    Raises:
        ConfigError: if the mask cannot be read, has colors, or differs in shape from its image.
    """
    from PIL.Image import Resampling

    mask = decoded(value, feature)
    path = value.get("path") if isinstance(value, dict) else None
    name = f"mask '{path}'" if path else "a mask"
    if mask.mode not in ONE_NUMBER:
        raise ConfigError(
            f"{name} has colors ({mask.mode}); expected a class number per pixel, in a grayscale "
            "or palette image."
        )
    if mask.format == "JPEG":
        assume(
            "Masks in JPEG files may have wrong classes, since compression changes their pixels."
        )
    width, height = mask.size
    if width * pixels[1] != height * pixels[0]:
        raise ConfigError(
            f"{name} has {width} x {height} pixels and its image {pixels[0]} x {pixels[1]}; "
            "expected the same shape."
        )
    if mask.size != pixels and all(each.about != OTHER_SIZE for each in current_assumptions()):
        assume(
            f"Masks are scaled to their images where sizes differ: {name} has {width} x {height} "
            f"pixels and its image {pixels[0]} x {pixels[1]}. Masks of a part of the image are "
            "wrong then.",
            about=OTHER_SIZE,
        )
    if mask.size != size[::-1]:
        mask = mask.resize(size[::-1], Resampling.NEAREST)
    return torch.from_numpy(np.array(mask).astype(np.int64))


def without_void(mask: Tensor) -> Tensor:
    """Shifts classes that count from 1 to start at 0; 0 becomes 255, and 255 stays."""
    return torch.where((mask == 0) | (mask == VOID), VOID, mask - 1)
