"""Rows: a labeled data set in memory, batched.

Tokenized texts are batched by similar length and padded within the batch, which is several times
cheaper than padding all of them to one length.

Shapes: N rows, B rows per batch, T tokens of the longest row of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from chop.base.notices import assume
from chop.config import Range, with_checked_arguments
from chop.data import label_column
from chop.data.stratify import stratified_split
from chop.errors import MOST_NAMES, ConfigError, describe, enumerate_names
from chop.train.given.frames import vector_columns
from chop.train.given.label_columns import outputs_among
from chop.train.given.label_values import read_labels, with_classes
from chop.train.given.reading import Column, NoLabelsError, as_column, is_numeric, read_columns
from chop.train.given.row_checks import check_columns
from chop.train.model_io import LABELS, POSITION
from chop.train.outputs import LabelPart, join_labels, outputs_task, split_labels
from chop.train.tasks import (
    IGNORED,
    Task,
    check_is_clear,
    check_is_not_shifted,
    infer_task,
)

if TYPE_CHECKING:
    from datasets import Dataset
    from torch.utils.data import DataLoader, TensorDataset

SPLITS = {"train", "validation", "test"}
VALIDATION_SHARE = 0.2
"""Share of the training rows used for validation if the data set has no validation split."""
LOGIT_BYTES = 2**25
"""Maximum logits of a batch of texts; 128 tokens over a vocabulary of 50,000 take 25 MB."""
LABELED_PIXELS = 2**19
"""Maximum number of pixels per batch of images with pixel labels."""
# Texts are grouped by length within so many batches, so that batches still differ by epoch.
BATCHES_PER_POOL = 50


@dataclass(frozen=True)
class Rows:
    """Columns of a labeled data set.

    Attributes:
        columns: each a tensor (N, ...), or a list of N tensors of different lengths.
        labels: classes as int64 (N,), token classes as (N, T) or a list; numbers as floats; labels
            of several outputs as float64 (N, D).
        parts: labels of several outputs, see `chop.train.outputs.join_labels`.
        vector: names of the columns of a frame that are the input vector, in its order.
    """

    columns: dict[str, Column]
    labels: Column
    parts: tuple[LabelPart, ...] = ()
    vector: tuple[str, ...] = ()

    @property
    def task(self) -> Task:
        """Task inferred from the labels, see `chop.train.tasks.infer_task`."""
        if self.parts:
            given = split_labels(torch.as_tensor(self.labels), self.parts)
            return outputs_task({name: infer_task({}, part) for name, part in given.items()})
        return infer_task(self.columns, self.labels)

    @property
    def about_vector(self) -> str:
        """Sentence about the columns of the input vector of a frame, for errors; "" for others."""
        if not self.vector:
            return ""
        listed = enumerate_names([*map(repr, self.vector)], MOST_NAMES)
        return (
            f" Columns of the frame that are read as the input: {listed}. Leave out those that the "
            "model was not trained on (frame.drop(columns=[...])), or add those that are missing."
        )

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self.labels)

    def take(self, index: Tensor) -> Rows:
        """Returns the rows with the given indices (n,), in their order."""
        columns = {name: _take(column, index) for name, column in self.columns.items()}
        return replace(self, columns=columns, labels=_take(self.labels, index))

    def spread(self, count: int) -> Rows:
        """Returns at most `count` rows, evenly spread over all."""
        return self.take(torch.linspace(0, len(self) - 1, min(count, len(self))).long())

    def batches(
        self, batch_size: int, *, pad_id: int = 0, shuffle: torch.Generator | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """Yields every row once, in batches with `labels` among the columns.

        Args:
            batch_size: rows per batch; the last batch may be smaller.
            pad_id: padding of `input_ids`. Labels are padded with `IGNORED`, other token columns
                with zeros.
            shuffle: draws the order; by default, the order is fixed, for texts by length.
        """
        for index in self._order(batch_size, shuffle):
            yield {
                name: column[index]
                if isinstance(column, Tensor)
                else pad(name, [column[i] for i in index], pad_id)
                for name, column in {**self.columns, LABELS: self.labels}.items()
            }

    def _order(self, batch_size: int, shuffle: torch.Generator | None) -> list[Tensor]:
        n = len(self)
        order = torch.arange(n) if shuffle is None else torch.randperm(n, generator=shuffle)
        lengths = self.lengths
        if lengths is None:
            return list(order.split(batch_size))
        pool = n if shuffle is None else batch_size * BATCHES_PER_POOL
        order = torch.cat([part[lengths[part].argsort(stable=True)] for part in order.split(pool)])
        batches = list(order.split(batch_size))
        if shuffle is None:
            return batches
        return [batches[i] for i in torch.randperm(len(batches), generator=shuffle)]

    @cached_property
    def lengths(self) -> Tensor | None:
        """The number of tokens of each row; None if all rows have the same length."""
        ragged = (column for column in self.columns.values() if not isinstance(column, Tensor))
        column = next(ragged, None)
        return None if column is None else torch.tensor([len(row) for row in column])


def task_for(asked: Task | None, rows: Rows) -> Task:
    """Returns the requested task, or infers it from the labels for None or a bare `multioutput`.

    Raises:
        ConfigError: if the labels suggest another task, or are tokens one position ahead.
    """
    if asked is None or asked.labels_from is not None:
        unnamed = None if asked is None else rows.columns.get(POSITION.format(0))
        check_is_not_shifted(rows.columns.get("input_ids", unnamed), rows.labels)
    if asked is not None and (asked.bind is None or asked.parts):
        return asked
    task = rows.task
    if not rows.parts:
        positions = rows.labels[0].shape[:1]
        columns = rows.columns.values()
        is_of_rows = not any(column[0].shape[:1] == positions for column in columns)
        check_is_clear(task, rows.labels, is_of_rows=is_of_rows)
        return task
    for name, labels in split_labels(torch.as_tensor(rows.labels), rows.parts).items():
        check_is_clear(task.parts[name], labels)
    return task


@with_checked_arguments
def split_rows(
    rows: Rows | Any,
    share: float = VALIDATION_SHARE,
    *,
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0,
    stratify: bool = False,
) -> tuple[Rows, Rows]:
    """Splits rows at random into training and validation rows.

    Args:
        rows: at least two, in any form that `read_rows` takes.
        share: share of validation rows; each part has at least one row.
        seed: seed of the draw.
        stratify: divide the rows of each class in proportion, if the labels are a class per row.
    Raises:
        ConfigError: if the share is not between 0 and 1, or there are fewer than two rows.
    """
    rows = read_rows(rows)
    if not 0 < share < 1:
        raise ConfigError(f"share: got {share}, expected more than 0 and less than 1.")
    if len(rows) < 2:
        raise ConfigError(
            f"got {len(rows)} training row, which cannot be split for validation; pass at least "
            "two (of running text, windows of a smaller max_length), or a validation split."
        )
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    count = min(max(1, round(share * len(rows))), len(rows) - 1)
    labels = rows.labels
    is_by_row = isinstance(labels, Tensor) and labels.dim() == 1 and not labels.is_floating_point()
    if stratify and is_by_row:
        numbers = torch.as_tensor(labels).cpu().numpy()
        first, others = map(torch.from_numpy, stratified_split(order.numpy(), numbers, count))
        return rows.take(others), rows.take(first)
    return rows.take(order[count:]), rows.take(order[:count])


def take_split(dataset: Any, name: str) -> Any:
    """Returns a split of a mapping of splits, or any other data set unchanged.

    Raises:
        ConfigError: if the mapping has no split of that name.
    """
    if not isinstance(dataset, dict) or not dataset.keys() & SPLITS:
        return dataset
    if name not in dataset:
        raise ConfigError(f"expected a split '{name}', got {sorted(dataset)}.")
    return dataset[name]


def _take(column: Tensor | list[Tensor], index: Tensor) -> Tensor | list[Tensor]:
    return column[index] if isinstance(column, Tensor) else [column[i] for i in index]


@with_checked_arguments
def read_rows(
    dataset: Dataset | DataLoader[Any] | TensorDataset | Rows | Any, task: Task | None = None
) -> Rows:
    """Reads a data set into memory.

    Labels with fractions stay floats. Other labels become int64; whole floats do so if every class
    from 0 occurs. A random transform is applied once.

    Args:
        dataset: a `datasets.Dataset`, a DataLoader, a mapping of columns, or a sized or finite
            iterable of mappings, each with a column `labels` or `label`; or inputs followed by
            labels, such as `(X, y)` of arrays or tensors, a TensorDataset or a data set of pairs.
            A DataLoader is read completely in the order of its data set, even if it shuffles or
            drops the last batch. Text columns are skipped.
        task: a task with `labels_from` takes its labels from that column, if there are no token
            labels, and an array on its own as that column; a task that `reads_all` needs no labels.
    Raises:
        ConfigError: if there is no label column, no column of numbers or no row, labels are
            missing, or inputs are NaN.
    """
    if isinstance(dataset, Rows):
        return dataset
    names = () if task is None else tuple(task.parts)
    if task is not None and task.labels_from and _is_one_column(dataset):
        dataset = {task.labels_from: dataset}
    table = _without_batch_of_one(read_columns(dataset, names))
    outputs, label = outputs_among(table, names), label_column(list(table))
    given = {*outputs.values()} or {label} - {None}
    inputs = {name: column for name, column in table.items() if name not in given}
    source = None if task is None else task.labels_from
    if inputs and given and _count(table) == 0:
        raise NoLabelsError(f"expected at least one row, got 0 rows with {list(table)}.")
    needs_labels = task is None or not (task.reads_all or source in inputs)
    if inputs and not given and needs_labels and label_column(_column_names(dataset)) is not None:
        read_label_column(dataset)  # raises for texts
    if not inputs or not (given or not needs_labels) or _count(table) == 0:
        held = f"{_count(table)} rows" if table else "0 rows"
        advice = (
            " Rename the column of labels; jobs such as chop.compress also take its name, "
            "--label-column."
        )
        advice *= len(table) > 1 and not given
        tokens = " --task causal-lm takes input_ids as labels." * ("input_ids" in table)
        raise NoLabelsError(
            "expected rows with a column 'labels' or 'label' and at least one column of numbers "
            f"(tokenize texts first), or (inputs, labels), got {held} with "
            f"{list(table)}.{tokens or advice}"
        )
    check_columns(table, given, None if task is None else task.name)
    if outputs:
        joined = join_labels({name: read_labels(table[x]) for name, x in outputs.items()})
        return Rows(inputs, *joined, vector=vector_columns(dataset, names))
    labels = None if label is None else table[label]
    if source in inputs and (labels is None or (isinstance(labels, Tensor) and labels.dim() < 2)):
        targets = tokens_as_labels(inputs, inputs[source])
        if targets[0].dim() and not any(bool((row[1:] != IGNORED).any()) for row in targets):
            raise ConfigError(
                "expected texts of at least two tokens, one to predict another: every text has "
                "one token, or an attention_mask of only 0."
            )
        return Rows(inputs, targets)
    if labels is None:
        return Rows(inputs, torch.zeros(_count(inputs)), vector=vector_columns(dataset))
    classes = _without_padding(inputs, with_classes(read_labels(labels), task))
    return Rows(inputs, classes, vector=vector_columns(dataset))


def _is_one_column(data: Any) -> bool:
    """Returns true for an array, and for a list of numbers or of lists of them."""
    is_list = isinstance(data, list) and len(data) > 0 and isinstance(data[0], int | list)
    return isinstance(data, Tensor | np.ndarray) or is_list


def _without_batch_of_one(table: dict[str, Column]) -> dict[str, Column]:
    """Removes dimension 1 of size 1 from tokens, which a tokenizer adds with `return_tensors`."""
    ids = table.get("input_ids")
    if ids is None or not len(ids) or any(row.dim() != 2 or len(row) != 1 for row in ids):
        return table
    shapes = [row.shape for row in ids]
    are_tokens = {
        name: [row.shape for row in column] == shapes or name == "input_ids"
        for name, column in table.items()
    }
    return {
        name: _first_of_each(column) if are_tokens[name] else column
        for name, column in table.items()
    }


def _first_of_each(column: Column) -> Column:
    return column[:, 0] if isinstance(column, Tensor) else [row[0] for row in column]


def _without_padding(inputs: dict[str, Column], labels: Column) -> Column:
    """Replaces labels of tokens whose attention mask is 0 by `IGNORED`, if they are all the same.

    The labels are then padding too. Labels of a decoder, whose input is masked, usually differ.
    """
    mask = inputs.get("attention_mask")
    if mask is None or not len(labels) or labels[0].dim() != 1 or labels[0].is_floating_point():
        return labels
    pairs = [*zip(labels, mask, strict=True)]
    if any(label.dim() != 1 or label.shape != attended.shape for label, attended in pairs):
        return labels
    hidden = torch.cat([label[(attended == 0) & (label != IGNORED)] for label, attended in pairs])
    if not len(hidden) or bool((hidden != hidden[0]).any()):
        return labels
    assume(
        f"Labels of tokens whose attention_mask is 0 are all {int(hidden[0])}, as padding is, and "
        f"do not count. {IGNORED} marks them without this assumption."
    )
    return tokens_as_labels(inputs, labels)


def _count(columns: dict[str, Column]) -> int:
    """Returns the number of rows of the first column; 1 for a single number."""
    first = next(iter(columns.values()), torch.empty(0))
    return 1 if isinstance(first, Tensor) and first.dim() == 0 else len(first)


def _column_names(dataset: Any) -> list[str]:
    """Returns the column names of a data set of `datasets`; none of other data."""
    names = getattr(dataset, "column_names", None)
    return names if isinstance(names, list) else []


def read_label_column(dataset: Dataset) -> tuple[Column, Task]:
    """Reads the labels like `read_rows`. Returns them and their task.

    Raises:
        ConfigError: if the labels are texts, or there is no label column.
    """
    label = label_column(_column_names(dataset))
    if label is None:
        raise NoLabelsError(
            "expected a data set of datasets with a column 'labels' or 'label', got "
            f"{describe(dataset)}; chop.train.read_rows reads other forms."
        )
    if not is_numeric(dataset, label):
        first = dataset.with_format(None)[label][0]
        if isinstance(first, list):
            raise ConfigError(
                f"label column '{label}': expected numbers, got lists such as {first!r:.60}; "
                "--task multilabel reads lists of classes. Number classes of tokens from 0 "
                f"({IGNORED} for tokens that do not count)."
            )
        raise ConfigError(
            f"label column '{label}': expected numbers, got "
            f"{describe(first)}; number the classes from 0, as class_encode_column('{label}') does "
            f"({IGNORED} for tokens that do not count), or name another column with "
            "--label-column (label= of chop.data.load_dataset)."
        )
    labels = read_labels(as_column(dataset.with_format("numpy")[label][:]))
    return labels, infer_task({}, labels)


def tokens_as_labels(inputs: dict[str, Column], ids: Column) -> Column:
    """Returns the tokens as labels, with `IGNORED` where the attention mask is zero."""
    mask = inputs.get("attention_mask")
    if isinstance(ids, Tensor):
        return _unmasked(ids, mask)
    return [_unmasked(row, None if mask is None else mask[i]) for i, row in enumerate(ids)]


def _unmasked(ids: Tensor, mask: Column | None) -> Tensor:
    if mask is None:
        return ids.long()
    return ids.long().masked_fill(torch.as_tensor(mask) == 0, IGNORED)


def pad(name: str, rows: list[Tensor], pad_id: int) -> Tensor:
    """Stacks the rows of one column, padded to the longest: (B, T, ...).

    Args:
        name: name of the column; `input_ids` is padded with `pad_id`, `labels` with `IGNORED`,
            others with zeros.
        rows: each (T_i, ...).
        pad_id: padding token ID.
    """
    if len({row.shape for row in rows}) == 1:
        return torch.stack(rows)
    value = {"input_ids": pad_id, LABELS: IGNORED}.get(name, 0)
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


def has_pictures_in_text(rows: Rows) -> bool:
    """Returns true if rows are texts with images, which a graph takes one at a time.

    Vision-language models split a batch of images in Python, so a graph is specialized to the
    number of images that it was captured with.
    """
    return {"input_ids", "pixel_values"} <= rows.columns.keys()


def check_batch(rows: Rows, size: int) -> None:
    """Checks that a graph can take the given number of rows at once.

    Raises:
        ConfigError: if several rows are texts with images.
    """
    if size > 1 and has_pictures_in_text(rows):
        raise ConfigError(
            f"batch {size}: expected 1, since a graph takes one text with images at a time."
        )


def rows_per_batch(
    model: nn.Module, rows: Rows, task: Task, most: int, logit_bytes: int | None = None
) -> int:
    """Returns the batch size of a forward.

    Args:
        model: model whose configuration has the vocabulary size.
        rows: to be cut into batches.
        task: for token labels, the logits of a batch stay below `logit_bytes`.
        most: maximum batch size.
        logit_bytes: maximum logits of a batch in bytes. Default: `LOGIT_BYTES`.
    """
    if has_pictures_in_text(rows):
        return 1
    if rows.labels[0].dim() > 1:  # images, each with logits of its size for each class
        most = min(most, max(1, LABELED_PIXELS // max(rows.labels[0].numel(), 1)))
    config = getattr(model, "config", None)
    if config is None or task.labels_from is None:
        return most
    # Rows without labels have placeholders instead, one number each.
    tokens = rows.labels if rows.labels[0].dim() else rows.columns.get("input_ids", [])
    longest = max((len(row) for row in tokens), default=1)
    limit = LOGIT_BYTES if logit_bytes is None else logit_bytes
    token_bytes: int = 4 * config.get_text_config().vocab_size
    return max(1, min(most, limit // (token_bytes * max(longest, 1))))


def padding_token(model: nn.Module) -> int:
    """Returns the padding token of a model's configuration, see `named_padding_token`, else 0."""
    return named_padding_token(model) or 0


def named_padding_token(model: nn.Module) -> int | None:
    """Returns the padding token of a model's configuration if it is within the vocabulary, or None.

    For a vision-language model, the decoder's configuration is used; the outer one may hold
    defaults.
    """
    config = getattr(model, "config", None)
    text = getattr(config, "text_config", config)
    vocabulary = getattr(text, "vocab_size", None)
    for named in (text, config):
        token = getattr(named, "pad_token_id", None)
        if isinstance(token, int) and 0 <= token < (vocabulary or token + 1):
            return token
    return None
