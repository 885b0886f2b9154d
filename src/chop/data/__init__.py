"""Data sets: built-in ones, local files and the hub's, by one name.

`load_dataset(name_or_path, *, limit=None)` -> DatasetDict with `train` and `test`;
`get_tokenized_dataset(dataset, checkpoint, ...)` the same with token columns.
"""

from chop.data.load import (
    BUILTIN_DATASETS,
    TEXT_DATASETS,
    label_column,
    load_dataset,
    num_labels,
)
from chop.data.tokenize import get_tokenized_dataset
from chop.data.tokenizer import BUILTIN_TOKENIZERS, get_tokenizer
