"""Lazy decoding of images to tensors when a row is read.

Shapes: C channels, H rows, W columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from chop.base.notices import assume
from chop.data.catalogue import DatasetInfo
from chop.data.label_columns import label_column
from chop.data.masks import has_masks, read_mask, without_void
from chop.data.pictures import decoded, picture_column, with_files
from chop.errors import ConfigError

if TYPE_CHECKING:
    from datasets import DatasetDict, Image
    from PIL.Image import Image as Picture


WIDE = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
"""Pillow modes with one channel of more than 8 bits."""
LARGEST = 2**16 - 1
"""Largest pixel of a 16-bit image."""


@dataclass(frozen=True)
class _PixelTransform:
    """Transform of rows with images to `pixel_values`, float32 (C, H, W), and `labels`.

    Attributes:
        column: column with image files.
        feature: feature of that column.
        label: label column; None for images without labels.
        size: (C, H, W) of the result; images are scaled bilinearly.
        mean: mean per channel, subtracted from pixels of 0 to 1.
        std: standard deviation per channel, by which the difference is divided.
        masks: feature of labels that are masks, which become int64 (H, W).
        reduce_labels: true if masks number classes from 1 and 0 does not count.
    """

    column: str
    feature: Image
    label: str | None
    size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    masks: Image | None = None
    reduce_labels: bool = False

    def __call__(self, rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Transforms a batch of rows. A broken image raises ConfigError."""
        pictures = [decoded(file, self.feature) for file in rows[self.column]]
        pixels = [self.picture(each) for each in pictures]
        if self.label is None:
            return {"pixel_values": pixels}
        labels = rows[self.label]
        if self.masks is not None:
            labels = [
                read_mask(file, self.masks, picture.size, self.size[1:])
                for file, picture in zip(labels, pictures, strict=True)
            ]
        if self.reduce_labels:
            labels = [without_void(mask) for mask in labels]
        return {"pixel_values": pixels, "labels": labels}

    def picture(self, picture: Picture) -> Tensor:
        """Normalizes one image."""
        from PIL.Image import Resampling

        channels, height, width = self.size
        picture = _as_channels(picture, channels)
        if picture.size != (width, height):
            picture = picture.resize((width, height), Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(picture, dtype=np.float32) / 255)
        pixels_CHW = pixels.view(height, width, -1).permute(2, 0, 1).expand(channels, -1, -1)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return ((pixels_CHW - mean) / std).contiguous()


def _as_channels(picture: Picture, channels: int) -> Picture:
    """Converts an image to gray or RGB of 0 to 255; 16-bit pixels keep their precision.

    Raises:
        ConfigError: if its pixels have more than 16 bits.
    """
    from PIL import Image

    # Photos of cameras (MPO) hold smaller versions of themselves.
    if picture.format != "MPO" and getattr(picture, "n_frames", 1) > 1:
        assume("Only the first frame of images with several frames is read.")
    if picture.mode not in WIDE:
        return picture.convert("L" if channels == 1 else "RGB")
    # Pillow's own conversion would clip them to 255.
    values = np.asarray(picture, dtype=np.float32)
    if picture.mode == "F" or values.max() > LARGEST or values.min() < 0:
        raise ConfigError(
            f"an image has pixels of 32 bits (mode {picture.mode}), expected 8 or 16 bits per "
            "channel; convert the images."
        )
    assume(f"Pixels of 16-bit images are divided by {LARGEST}, so that they are from 0 to 1.")
    return Image.fromarray(values * np.float32(255 / LARGEST))


def with_pixels(
    splits: DatasetDict,
    info: DatasetInfo,
    size: tuple[int, int, int] | None = None,
    *,
    reduce_labels: bool = False,
) -> DatasetDict:
    """Replaces images with tensors. Returns a data set of tensors unchanged.

    Args:
        splits: result of `load_dataset`.
        info: catalogue entry, for mean and standard deviation of the pixels.
        size: (C, H, W) that the model takes; default, that of the data set.
        reduce_labels: see `_PixelTransform`.
    Raises:
        ConfigError: if the data set holds tensors of another size.
    """
    from datasets import DatasetDict

    column = picture_column(splits)
    label = label_column(splits["train"].column_names)
    if column is None:
        if size and info.image_size not in (None, size):
            raise ConfigError(
                f"data set '{info.name}' has tensors of size {info.image_size}, the model "
                f"takes {size}."
            )
        return splits
    wanted = size or info.image_size or (3, 224, 224)
    mean, std = (
        values if len(values) == wanted[0] else (values * 3)[: wanted[0]]
        for values in (info.pixel_mean, info.pixel_std)
    )
    features = splits["train"].features
    masks = None if label is None or not has_masks(splits) else features[label]
    transform = _PixelTransform(
        column, features[column], label, wanted, mean, std, masks, reduce_labels
    )
    for each in (column,) if label is None or masks is None else (column, label):
        splits = DatasetDict({key: with_files(split, each) for key, split in splits.items()})
    return splits.with_transform(transform)
