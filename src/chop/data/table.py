"""Tables of numbers: several columns of one number each, as the one input that a model takes."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from chop.data.load import label_column

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

NUMBERS = ("int", "uint", "float", "bool")


def with_vectors(splits: DatasetDict, parameters: Collection[str]) -> DatasetDict:
    """The same with all columns of numbers as one column `x` of vectors, in their order.

    Args:
        splits: what `load_dataset` gives.
        parameters: of the model: where one of them has the name of a column, or there is only one
            column beside the labels, the data set stays as it is.
    """
    from datasets import DatasetDict

    features = splits["train"].features
    label = label_column(list(features))
    numbers = [
        name
        for name, feature in features.items()
        if name != label and str(getattr(feature, "dtype", "")).startswith(NUMBERS)
    ]
    taken = [name for name in features if name != label and name in parameters]
    if taken or len(numbers) < 2:
        return splits
    return DatasetDict({key: _vectors(split, numbers, label) for key, split in splits.items()})


def _vectors(split: Dataset, numbers: list[str], label: str | None) -> Dataset:
    from datasets import Dataset

    table = split.with_format("numpy")
    columns = {"x": np.stack([table[name][:] for name in numbers], 1).astype(np.float32)}
    if label is not None:
        columns[label] = table[label][:]
    return Dataset.from_dict(columns)
