"""Data sets: built-in ones, local files and hub data sets behind one loader.

`load_dataset(name_or_path, *, limit=None)` -> DatasetDict with `train` and `test`;
`get_tokenized_dataset(dataset, checkpoint, ...)` -> the DatasetDict with token columns;
`get_dataset_info(name)` -> properties of a data set that determine a model.
"""

from chop.data.catalogue import (
    DATASETS,
    DatasetInfo,
    describe_dataset,
    get_dataset_info,
)
from chop.data.cells import with_plain_cells
from chop.data.label_columns import label_column, num_labels, required_label_column
from chop.data.labels import check_classes, class_names, with_numbered_labels
from chop.data.load import (
    BUILTIN_DATASETS,
    TEXT_DATASETS,
    load_dataset,
)
from chop.data.masks import has_masks
from chop.data.pictures import picture_column
from chop.data.pixels import with_pixels
from chop.data.table import with_vectors
from chop.data.tokenize import get_tokenized_dataset
from chop.data.tokenizer import BUILTIN_TOKENIZERS, check_vocabulary, get_tokenizer
from chop.data.windows import is_running_text, strided_windows

__all__ = [
    "BUILTIN_DATASETS",
    "BUILTIN_TOKENIZERS",
    "DATASETS",
    "TEXT_DATASETS",
    "DatasetInfo",
    "check_classes",
    "check_vocabulary",
    "class_names",
    "describe_dataset",
    "get_dataset_info",
    "get_tokenized_dataset",
    "get_tokenizer",
    "has_masks",
    "is_running_text",
    "label_column",
    "load_dataset",
    "num_labels",
    "picture_column",
    "required_label_column",
    "strided_windows",
    "with_numbered_labels",
    "with_pixels",
    "with_plain_cells",
    "with_vectors",
]
