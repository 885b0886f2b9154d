"""Undecoded images in rows, so that errors can name a broken file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chop.base.files.reading import read_bytes
from chop.data.splits import check_splits
from chop.errors import ConfigError, first_line

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, Image
    from PIL.Image import Image as Picture


def picture_column(splits: DatasetDict) -> str | None:
    """Returns the column with encoded images that are not labels, or None."""
    from datasets import Image

    check_splits(splits)
    features = splits["train"].features
    pictures = [name for name, kind in features.items() if isinstance(kind, Image)]
    return next((name for name in pictures if name not in ("labels", "label")), None)


def check_not_only_images(dataset: Dataset, numbers: Sequence[str]) -> None:
    """Raises ConfigError if the inputs of a table are images, which are not decoded here.

    Args:
        dataset: table of `datasets`.
        numbers: its input columns of numbers.
    """
    from datasets import Image

    images = [name for name, feature in dataset.features.items() if isinstance(feature, Image)]
    if images and not numbers:
        raise ConfigError(
            f"column '{images[0]}' holds images; set a transform that makes tensors of them "
            "(dataset.with_transform)."
        )


def with_files(split: Dataset, column: str) -> Dataset:
    """Replaces images with files, which `decoded` takes."""
    feature = dataclasses.replace(split.features[column], decode=False)
    return split.cast_column(column, feature)


def decoded(value: Any, feature: Image) -> Picture:
    """Decodes the image of a file.

    Args:
        value: `path` and `bytes` from a row of `with_files`, or an image, which is returned.
        feature: feature of the column.

    Raises:
        ConfigError: if the image is missing or unreadable; the message names the file.
    """
    from PIL import UnidentifiedImageError

    if value is None:
        raise ConfigError("a row of the data has no image; remove it.")
    try:
        if isinstance(value, dict) and value["bytes"] is None and Path(value["path"]).exists():
            # What Pillow has opened itself it leaves open where it fails.
            value = {**value, "bytes": read_bytes(value["path"], "image")}
        picture: Picture = dataclasses.replace(feature, decode=True).decode_example(value)
        return picture
    except Exception as error:  # each decoder raises what its bytes lead it to
        is_other = isinstance(error, UnidentifiedImageError)
        reason = "its format is unknown" if is_other else _reason(error)
        reason = "it is empty, 0 bytes" if value["bytes"] == b"" else reason
        raise ConfigError(
            f"{_named(value)} cannot be read: {reason}; replace or remove it."
        ) from error


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or first_line(error).rstrip(".")


def _named(value: dict[str, Any]) -> str:
    if value["path"] is not None:
        return f"image '{value['path']}'"
    return f"an image of {len(value['bytes'] or b'')} bytes"
