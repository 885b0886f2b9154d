"""Catalogue of data sets with their kinds and sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from chop.config import with_checked_arguments
from chop.data.builtin_names import builtin_name, plain_name
from chop.data.label_columns import label_column, num_labels
from chop.data.load import has_data
from chop.data.masks import has_masks
from chop.data.pictures import decoded, picture_column, with_files
from chop.data.tokenize import TEXT_COLUMNS
from chop.data.tokenizer import STORY_VOCABULARY
from chop.errors import ConfigError, check_known

if TYPE_CHECKING:
    from datasets import DatasetDict

Kind = Literal["vision", "nlp", "physical"]
GRAYSCALE = ((0.5,), (0.5,))
RGB = ((0.5,) * 3, (0.5,) * 3)


@dataclass(frozen=True)
class DatasetInfo:
    """Properties of a data set that determine a model.

    Attributes:
        name: name in `MaseDataModule` and `chop.data.load_dataset`.
        kind: images, texts, or feature vectors.
        num_classes: number of classes; vocabulary size for text without labels; 0 for masks, whose
            files do not state it.
        image_size: (channels, height, width) of images, for your files of the first one; None
            without images.
        num_features: length of the vectors.
        pixel_mean: mean per channel of pixels from 0 to 1, subtracted from them.
        pixel_std: standard deviation per channel, by which the difference is divided.
    """

    name: str
    kind: Kind
    num_classes: int
    image_size: tuple[int, int, int] | None = None
    num_features: int | None = None
    pixel_mean: tuple[float, ...] = RGB[0]
    pixel_std: tuple[float, ...] = RGB[1]


_CIFAR = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_ROWS = (
    DatasetInfo("toy", "physical", 5, num_features=16),
    DatasetInfo("jsc", "physical", 5, num_features=16),
    DatasetInfo("digits", "vision", 10, (1, 8, 8), None, *GRAYSCALE),
    DatasetInfo("mnist", "vision", 10, (1, 28, 28), None, (0.1307,), (0.3081,)),
    DatasetInfo("fashion_mnist", "vision", 10, (1, 28, 28), None, (0.2860,), (0.3530,)),
    DatasetInfo("cifar10", "vision", 10, (3, 32, 32), None, *_CIFAR),
    DatasetInfo("reviews", "nlp", 2),
    DatasetInfo("stories", "nlp", STORY_VOCABULARY),
    DatasetInfo("imdb", "nlp", 2),
    DatasetInfo("rotten_tomatoes", "nlp", 2),
    DatasetInfo("sst2", "nlp", 2),
    DatasetInfo("ag_news", "nlp", 4),
)
DATASETS: dict[str, DatasetInfo] = {row.name: row for row in _ROWS}
"""Catalogue by name. Data sets that are not built in are fetched from the hub, `jsc` from OpenML.
"""


@with_checked_arguments
def get_dataset_info(name: str) -> DatasetInfo:
    """Returns the catalogue entry of a data set.

    Raises:
        ConfigError: if the name is unknown; the message suggests the nearest.
    """
    plain = plain_name(name)
    check_known(plain, DATASETS, "unknown data set")
    return DATASETS[plain]


@with_checked_arguments
def describe_dataset(name: str, splits: DatasetDict) -> DatasetInfo:
    """Returns the catalogue entry of a data set, or derives one from its columns.

    Args:
        name: built-in name, folder or hub name.
        splits: rows by split; only "train" is inspected.

    Raises:
        ConfigError: if the data set has no texts, no images and no single column of vectors, or
            if its first image is broken.
    """
    known = builtin_name(name, DATASETS, "data set", has_data)
    if known is not None:
        return DATASETS[known]
    train = splits["train"]
    columns = train.column_names
    label, picture = label_column(columns), picture_column(splits)
    inputs = [column for column in columns if column != label]
    is_unlabeled = picture is not None and label is None
    classes = 0 if is_unlabeled or has_masks(splits) else num_labels(splits)
    if picture is not None:
        example = decoded(with_files(train, picture)[0][picture], train.features[picture])
        is_gray = example.mode in ("1", "L")
        size = (1 if is_gray else 3, example.height, example.width)
        return DatasetInfo(name, "vision", classes, size, None, *(GRAYSCALE if is_gray else RGB))
    if set(inputs) & set(TEXT_COLUMNS):
        return DatasetInfo(name, "nlp", classes)
    if len(inputs) == 1 and hasattr(vector := train[0][inputs[0]], "__len__"):
        return DatasetInfo(name, "physical", classes, num_features=len(vector))
    raise ConfigError(
        f"data set '{name}': expected a column of text, of images, or one of vectors in addition "
        f"to the labels, found {columns}."
    )
