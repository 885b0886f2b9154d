"""Input adapters that convert (X, y), DataLoaders and data sets to labeled columns.

Shapes: N rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from chop.data import label_column
from chop.data.bars import without_bars
from chop.data.cells import note_texts
from chop.data.null_rows import check_lists
from chop.data.pictures import check_not_only_images
from chop.errors import MOST_NAMES, ConfigError, describe, enumerate_names
from chop.train.given.arrays import dense
from chop.train.given.frames import (
    check_same_order,
    is_frame,
    is_series,
    is_text,
    only_texts,
    split_frame,
    to_array,
    to_matrix,
)
from chop.train.given.kinds import TOKENIZE, check_can_hold_rows
from chop.train.given.label_columns import label_columns
from chop.train.model_io import LABELS, POSITION, TEST_ROWS
from chop.train.user_code import read_items

if TYPE_CHECKING:
    from datasets import Dataset

Column = Tensor | list[Tensor]
"""Tensor (N, ...), or a list of N tensors of different lengths."""
SEVERAL = " For a model with several inputs, pass ((a, b), y), with a tuple of the inputs."


class NoLabelsError(ConfigError):
    """Raised if rows have no labels."""


def read_columns(dataset: Any, outputs: Sequence[str] = ()) -> dict[str, Column]:
    """Returns the columns of a data set by name. Unnamed columns are named by `POSITION`.

    Args:
        dataset: see `chop.train.read_rows`.
        outputs: names of outputs that may be columns of a frame.
    Raises:
        ConfigError: if the kind of data set is unknown, or its parts differ in length.
    """
    check_can_hold_rows(dataset)
    if isinstance(dataset, TensorDataset):
        return _from_arrays(dataset.tensors)
    if isinstance(dataset, DataLoader):
        batched = dataset.batch_sampler is not None
        with torch.random.fork_rng(devices=[]):  # starting a loader draws a number
            loaded = read_items("data", in_order(dataset), dataset.dataset)
            kinds: set[bool] = set()  # the first batch shows if labels are of several outputs
            return _from_items(row for batch in loaded for row in _get_rows(batch, batched, kinds))
    if is_frame(dataset):
        if outputs and {*outputs} <= {*dataset.columns}:
            named = {name: to_array(dataset[name], name) for name in outputs}
            return _from_arrays((dataset.drop(columns=list(outputs)), named))
        if label_column(list(dataset.columns)) is None:
            if texts := only_texts(dataset):
                raise NoLabelsError(
                    "expected a frame with numbers and a column 'labels' or 'label', got only "
                    f"texts, in {texts}: tokenize them, and pass dict(tokenizer(list(texts))) with "
                    "the labels. Running text needs no labels with --task causal-lm."
                )
            raise NoLabelsError(
                "expected a frame with a column 'labels' or 'label', or a pair such as "
                "(frame[inputs], frame['y']) for labels in a column 'y', got the columns "
                f"{enumerate_names(list(map(repr, dataset.columns)), MOST_NAMES)}; instead of the "
                "pair, chop.compress also takes label_column='y'."
            )
        return _from_arrays(split_frame(dataset))
    if _is_named_pair(dataset):
        return _from_named(*dataset)
    if isinstance(dataset, tuple):
        are_rows = all(isinstance(part, tuple) for part in dataset)
        return _from_items(dataset) if are_rows else _from_arrays(_with_flat_inputs(dataset, True))
    # A transform of the user's makes its columns row by row, and they are not in the table.
    if hasattr(dataset, "with_format") and hasattr(dataset, "column_names"):
        form = getattr(dataset, "format", None)
        return _from_table(dataset) if form and form["type"] != "custom" else _from_items(dataset)
    if isinstance(dataset, Iterator):
        dataset = take_items(dataset)
    if isinstance(dataset, Mapping):
        return read_mapping(dataset)
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        items = (dataset[i] for i in range(len(dataset)))
        return _from_items(read_items("data", items, dataset))
    if isinstance(dataset, Iterable):
        return _from_items(read_items("data", dataset))
    lacks_length = " without __len__" if hasattr(dataset, "__getitem__") else ""
    raise ConfigError(
        f"expected rows as a data set, a DataLoader, a TensorDataset or (X, y), got "
        f"{type(dataset).__name__}{lacks_length}."
    )


def _are_texts(column: Any) -> bool:
    """Returns true if the first value of a list, a series or an array of objects is a text."""
    if is_series(column):
        return is_text(column)
    is_listed = isinstance(column, list | tuple) or (
        isinstance(column, np.ndarray) and column.dtype.kind in "OU"
    )
    return is_listed and len(column) > 0 and isinstance(column[0], str)


def take_items(data: Iterator[Any]) -> list[Any]:
    """Returns the items of an iterator.

    Raises:
        ConfigError: if it has none.
    """
    items = list(read_items("data", data))
    if not items:
        raise ConfigError(
            "expected rows, got an empty or already consumed iterator; pass a list, or a new "
            "iterator for each split."
        )
    return items


def _is_named_pair(value: Any) -> bool:
    """Returns true if a value is a pair of a mapping of inputs and their labels."""
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    if not isinstance(value[0], Mapping) or not isinstance(value[1], Mapping):
        return isinstance(value[0], Mapping)
    columns = [*value[0].values(), *value[1].values()]
    return all(np.ndim(column) for column in columns) and len({*map(len, columns)}) == 1


def _with_flat_inputs(
    item: Any, are_columns: bool = False, kind: type[tuple[Any, ...] | list[Any]] = tuple
) -> Any:
    """Returns (a, b, y) for the pair ((a, b), y) of a model with several inputs.

    Args:
        item: columns, a row or a batch; other values are returned unchanged.
        are_columns: a tuple with as many arrays as there are labels stays the rows of one input.
        kind: type of the inputs. A DataLoader collates tuples to lists, whose arrays have a row
            for each label. Other lists are rows of different lengths.
    """
    if not isinstance(item, tuple | list) or len(item) != 2:
        return item
    inputs, labels = item
    if not isinstance(inputs, kind) or len(inputs) < 2:
        return item
    if not all(isinstance(x, Tensor | np.ndarray) or is_frame(x) for x in inputs):
        return item
    # A DataLoader collates labels of several outputs to a list of columns.
    are_columns_of_labels = isinstance(labels, list) and any(np.ndim(y) for y in labels[:1])
    first = labels[0] if are_columns_of_labels else labels
    rows = len(first) if isinstance(first, list) else next(iter(np.shape(first)), None)
    if are_columns and len(inputs) == rows:
        return item
    if kind is list and rows is not None and any(np.shape(x)[:1] != (rows,) for x in inputs):
        return item
    return (*inputs, labels)


def _from_named(inputs: Mapping[str, Any], labels: Any) -> dict[str, Column]:
    """Returns columns by name with the labels of their rows."""
    used = _without_texts(inputs, None)
    columns = {name: as_column(_array(column)) for name, column in used.items()}
    rows = len(next(iter(columns.values()), ()))
    for name, column in label_columns(labels, rows).items():
        columns[name] = as_column(_get_labels(column))
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1 or len(columns) < 2:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ConfigError(f"expected inputs and labels with equally many rows, got {listed}.")
    return columns


def _array(value: Any) -> Any:
    """Converts frames, series and sparse matrices to arrays. Returns other values unchanged."""
    if is_frame(value):
        return to_matrix(value)
    return to_array(value) if is_series(value) else dense(value)


def _get_labels(value: Any) -> Any:
    """Converts labels like `_array`. A frame with one column becomes a series."""
    if is_frame(value) and value.shape[1] == 1:
        value = value.iloc[:, 0]
    return to_array(value, str(value.name or LABELS)) if is_series(value) else _array(value)


@without_bars()
def _from_table(dataset: Dataset) -> dict[str, Column]:
    names = [name for name in dataset.column_names if is_numeric(dataset, name)]
    label = label_column(dataset.column_names)
    check_not_only_images(dataset, [name for name in names if name != label])
    check_lists(dataset, names)
    others = [name for name in dataset.column_names if name not in (*names, label)]
    note_texts(others, [name for name in names if name != label])
    table = dataset.select_columns(names).with_format("numpy")[:]
    return {name: as_column(table[name]) for name in names}


def is_numeric(dataset: Dataset, name: str) -> bool:
    """Returns true if a column of a table holds numbers, or lists of them."""
    feature = dataset.features[name]
    while hasattr(feature, "feature"):
        feature = feature.feature
    return str(getattr(feature, "dtype", "")).startswith(("int", "uint", "float", "bool"))


def _from_items(items: Iterable[Any]) -> dict[str, Column]:
    rows = [_named(item, f"row {number}") for number, item in enumerate(items)]
    if _are_batches(rows):
        rows = [row for batch in rows for row in _get_rows(batch, False, set())]
    names = rows[0].keys() if rows else []
    for number, row in enumerate(rows):
        if row.keys() != names:
            raise ConfigError(
                f"data: row {number} has {_listed(row)}, and row 0 has {_listed(rows[0])}; "
                "expected the same columns in each row."
            )
    return read_mapping({name: [row[name] for row in rows] for name in names})


def read_mapping(columns: Mapping[str, Any]) -> dict[str, Column]:
    """Returns columns without those of texts, such as an ID of each row, which are assumptions.

    Labels stay, and so do texts that are the only inputs: messages about them are errors.
    """
    named = _without_texts(columns, label_column(list(columns)))
    return {name: _read_column(name, column) for name, column in named.items()}


def _without_texts(columns: Mapping[str, Any], label: str | None) -> Mapping[str, Any]:
    texts = [name for name in columns if name != label and _are_texts(columns[name])]
    numbers = [name for name in columns if name not in (*texts, label)]
    note_texts(texts, numbers)
    return {name: column for name, column in columns.items() if not numbers or name not in texts}


def _read_column(name: str, values: Any) -> Column:
    """Returns the values as a column; its name begins an error."""
    try:
        return as_column(values)
    except ConfigError as error:
        message = str(error)
        raise ConfigError(
            message if message.startswith("column '") else f"column '{name}': {message}"
        ) from None


def _are_batches(items: Sequence[Mapping[str, Any]]) -> bool:
    """Returns true if items are batches of one size with a class per row. The last may be smaller.

    Token-labeled rows, in contrast, have one length or many lengths.
    """
    sizes = []
    for item in items:
        labels, inputs = item.get(LABELS), [x for name, x in item.items() if name != LABELS]
        if not isinstance(labels, Tensor | np.ndarray) or np.ndim(labels) != 1:
            return False
        if any(np.ndim(x) < 2 or len(x) != len(labels) for x in inputs):
            return False
        sizes.append(len(labels))
    return len({*sizes[:-1]}) == 1 and 0 < sizes[-1] < sizes[0]


def _listed(names: Iterable[Any]) -> str:
    return enumerate_names([*map(repr, names)], MOST_NAMES) or "no columns"


def _named(item: Any, place: str) -> Mapping[str, Any]:
    """Returns the columns of a row or a batch, whose place is for messages."""
    item = _with_flat_inputs(item)
    if isinstance(item, Mapping):
        return item
    if isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], Mapping):
        return {**item[0], **label_columns(item[1])}
    if isinstance(item, tuple | list) and len(item) > 1:
        return _by_position(item)
    if isinstance(item, str):
        raise NoLabelsError(f"expected rows of numbers, got the text {item!r:.40}; {TOKENIZE}.")
    given = "None" if item is None else type(item).__name__
    raise NoLabelsError(
        f"expected each row to be a mapping or (x, label), got {given} in {place}; pass arrays as "
        "(inputs, labels)."
    )


def _by_position(parts: Sequence[Any]) -> dict[str, Any]:
    *inputs, labels = parts
    return {
        **{POSITION.format(i): part for i, part in enumerate(inputs)},
        **label_columns(labels),
    }


def _from_arrays(arrays: Sequence[Any]) -> dict[str, Column]:
    arrays = [list(array) if isinstance(array, Iterator) else dense(array) for array in arrays]
    check_same_order(arrays)
    for array in arrays:
        if isinstance(array, str):
            raise ConfigError(
                f"expected (X, y) of arrays, got the text '{array}'; pass the column itself."
            )
        if array is None or isinstance(array, Real) or getattr(array, "shape", None) == ():
            part = "X" if array is arrays[0] else "y"
            given = array.item() if isinstance(array, Tensor | np.ndarray) else array
            raise NoLabelsError(
                f"expected (X, y) of arrays, got {given} for {part}; pass one value per row."
            )
    if len(arrays) > 1 and LABELS not in label_columns(arrays[-1], len(arrays[0])):
        inputs = _by_position([*map(_array, arrays[:-1]), ()])
        del inputs[LABELS]
        return _from_named(inputs, arrays[-1])
    arrays = [*map(_array, arrays[:-1]), *map(_get_labels, arrays[-1:])]
    lengths = [len(array) for array in arrays]
    if len(arrays) < 2 or len(set(lengths)) > 1:
        kind = NoLabelsError if len(arrays) == 1 else ConfigError
        is_list_of_inputs = len(arrays) == 2 and _are_inputs(arrays[0], lengths[1])
        raise kind(
            f"expected (X, y) of one length, inputs first and labels last, got {len(arrays)} "
            f"of {lengths} rows.{TEST_ROWS * (len(arrays) == 4)}{SEVERAL * is_list_of_inputs}"
        )
    return {name: as_column(array) for name, array in _by_position(arrays).items()}


def _are_inputs(given: Any, rows: int) -> bool:
    """Returns true for a list of arrays that each have as many rows as there are labels."""
    return isinstance(given, list) and all(np.shape(x)[:1] == (rows,) for x in given)


def in_order(loader: DataLoader[Any]) -> Iterable[Any]:
    """Returns batches with every row once, in data order even if the loader shuffles or drops."""
    sampler = loader.sampler
    is_shuffled = (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(cast(Sized, loader.dataset))
    )
    is_plain = is_shuffled or isinstance(sampler, SequentialSampler)
    if not is_plain or type(loader.batch_sampler) not in (BatchSampler, type(None)):
        return loader
    return DataLoader(loader.dataset, loader.batch_size, collate_fn=loader.collate_fn)


def _row_count(inputs: Any) -> int:
    return len(next(iter(inputs.values()), ())) if isinstance(inputs, Mapping) else len(inputs)


def _get_rows(loaded: Any, is_batch: bool, kinds: set[bool]) -> Iterator[Mapping[str, Any]]:
    """Returns the rows of a loader's item: a batch, or either kind without automatic batching."""
    loaded = _with_flat_inputs(loaded, kind=list)
    if is_batch and isinstance(loaded, list | tuple) and len(loaded) > 1:
        *inputs, labels = loaded
        # Collated labels are a list of batches, where each row has a tuple of them.
        given = tuple(labels) if isinstance(labels, list) else labels
        count = _row_count(inputs[0])
        are_outputs = isinstance(given, tuple) and LABELS not in label_columns(given, count)
        if not kinds:
            kinds.add(are_outputs)
        if are_outputs and True in kinds:
            loaded = (*inputs, given)
    named = _named(loaded, "a batch")
    # Rows of a list may differ in length; the first one has their number of dimensions.
    dims = {
        name: np.ndim(column[:1] if isinstance(column, list) else column)
        for name, column in named.items()
    }
    if not is_batch and dims.get(label_column(list(named)) or "") == 0:
        yield named
        return
    if not is_batch and set(dims.values()) == {1}:
        raise ConfigError(
            "a DataLoader with batch_size=None yields one-dimensional items, which may be rows or "
            "batches; pass its data set, or set a batch size."
        )
    yield from rows_of_batch(named)


def rows_of_batch(batch: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the rows of a batch.

    Raises:
        ConfigError: if a part is a single value, or parts differ in length.
    """
    sizes = {name: _length(column) for name, column in batch.items()}
    if len(count := {*sizes.values()}) != 1 or None in count:
        listed = ", ".join(
            f"{name} {'a single value' if size is None else size}" for name, size in sizes.items()
        )
        raise ConfigError(
            f"data: expected equally many rows in each part of a batch, got {listed}."
        )
    for i in range(count.pop() or 0):
        yield {name: column[i] for name, column in batch.items()}


def _length(column: Any) -> int | None:
    """Returns the number of rows of a part of a batch; None for a single value."""
    if hasattr(column, "shape"):
        return next(iter(column.shape), None)
    return len(column) if isinstance(column, Sized) else None


def as_column(values: Any) -> Column:
    """Stacks rows into one tensor, or returns a list if they differ in length.

    NumPy's float64 becomes torch's default dtype, which models use. Tensors keep their dtype.

    Raises:
        ConfigError: if values are text, images, mappings or other objects.
    """
    values = _array(values)
    if isinstance(values, Mapping):
        raise ConfigError(
            "expected a column of numbers, got a mapping with "
            f"{enumerate_names([*map(repr, values)], MOST_NAMES)}; pass each as a column."
        )
    if isinstance(values, Tensor):
        return _on_cpu(values)
    if isinstance(values, np.ndarray) and values.dtype != object:
        return _numbers(values)
    if not isinstance(values, Iterable):
        raise ConfigError(
            f"expected a column of numbers, one per row, got "
            f"{describe(values)}; pass arrays as (X, y)."
        )
    rows = [_numbers(row) for row in values]
    if len({row.shape for row in rows}) <= 1:
        return torch.stack(rows) if rows else torch.empty(0)
    return rows


def _on_cpu(values: Tensor) -> Tensor:
    if values.is_meta:
        raise ConfigError(
            "expected rows of numbers, got a tensor on the meta device, which has no values; pass "
            "one on a CPU or GPU."
        )
    return values.detach().cpu()


def _numbers(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return _on_cpu(value)
    is_picture = type(value).__module__.startswith("PIL.")
    try:
        array = np.asarray(None if is_picture else value)
    except ValueError:
        raise ConfigError(
            f"expected rows of numbers, got parts of different shapes, {value!r:.80}; pass several "
            "inputs as (a, b, labels)."
        ) from None
    if array.dtype == object and array.size and all(isinstance(x, Real) for x in array.flat):
        # A frame with several types of numbers has such values.
        is_whole = all(isinstance(x, Integral) for x in array.flat)
        array = array.astype(np.int64 if is_whole else np.float64)
    if array.dtype.kind not in "biuf":
        what = "an image, which ToTensor() converts" if is_picture else describe(value)
        raise ConfigError(
            f"expected rows of numbers, got {what}; number classes, {TOKENIZE} with their labels."
        )
    halve = array.dtype == np.float64 and torch.get_default_dtype() != torch.float64
    kind = np.dtype(np.float32) if halve else array.dtype.newbyteorder("=")
    return torch.from_numpy(np.array(array, kind, order="C"))
