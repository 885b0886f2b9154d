"""Batches of rows for a model on one device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from chop.base.files.limits import reached_limit
from chop.base.notices import assume, get_logger
from chop.captured.wrappers import check_has_values, check_is_module
from chop.errors import ChopError, ConfigError, describe, first_line
from chop.models.positions import warn_about_positions
from chop.train.device import usable_device
from chop.train.dtypes import cast_inputs
from chop.train.given.row_checks import IDS, MASK
from chop.train.model_io import (
    LABELS,
    advise_inputs,
    fed_columns,
    read_answers,
    warn_about_other_logits,
)
from chop.train.rows import Rows, named_padding_token, padding_token, read_rows, task_for
from chop.train.task import IGNORED
from chop.train.tasks import Task, find_task
from chop.train.token_ids import check_token_ids

ROW = "number of the row"
"""Name of the column with row numbers in a batch. No parameter can have this name."""
PADDING_SAMPLE = 256
"""Number of rows that are searched for padding without a mask."""
LEAST_RUN = 2
"""Least length of a run of padding tokens. A single one may be the end of a text."""

log = get_logger(__name__)


class Answered(NamedTuple):
    """Output of a model for a batch.

    Attributes:
        output: output of the model.
        labels: labels of the batch on the model's device.
        columns: all columns of the batch, with those that the model does not take, and `ROW`.
    """

    output: Any
    labels: Tensor
    columns: dict[str, Tensor]


class Feed:
    """Labeled rows as batches of model inputs.

    Args:
        model: see `chop.train.model_io`; it is moved to the device.
        rows: any form that `chop.train.read_rows` takes.
        batch_size: rows per batch; texts are batched by similar length.
        task: task of the model; default, inferred from the labels.
        device: device of the batches; default, the model's.
    Raises:
        ConfigError: if the model is no module, no column matches an input of it, there are no rows,
            the labels do not fit the task, or the batch size is below 1.
    """

    def __init__(
        self,
        model: nn.Module,
        rows: Any,
        batch_size: int,
        task: str | Task | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        check_is_module(model, "model")
        check_has_values(model, type(model).__name__)
        asked = None if task is None else find_task(task)
        self.rows = cast_inputs(model, {"rows": read_rows(rows, asked)})["rows"]
        self.task = task_for(asked, self.rows)
        is_whole = isinstance(batch_size, Integral) and not isinstance(batch_size, bool)
        if not is_whole or batch_size < 1:
            raise ConfigError(
                f"batch_size: expected a whole number, 1 or more, got {describe(batch_size)}."
            )
        held = next(model.parameters(), torch.empty(0)).device
        self.device = held if device is None else usable_device(device)
        self.model, self.batch_size = model.to(self.device), batch_size
        self.task = bound_task(self.task, self.model, self.rows)
        self.task.check_labels(self.rows.labels)
        self.columns = fed_columns(model, self.rows.columns, self.task)
        inputs = {name: self.rows.columns.get(column) for name, column in self.columns.items()}
        check_token_ids(model, {name: x for name, x in inputs.items() if x is not None})
        _check_padding(model, self.rows, self.task)
        ids = inputs.get(IDS) if self.task.labels_from == IDS else None
        if ids is not None and "position_ids" not in inputs:
            length = ids.shape[1] if isinstance(ids, Tensor) else max(map(len, ids))
            warn_about_positions(length, model, log)

    @property
    def steps(self) -> int:
        """The number of batches."""
        return math.ceil(len(self.rows) / self.batch_size)

    def without_own_loss(self) -> None:
        """Stops feeding labels to the model."""
        self.task = dataclasses.replace(self.task, takes_model_loss=False)
        self.columns = fed_columns(self.model, self.rows.columns, self.task)

    def batches(
        self, shuffle: torch.Generator | None = None
    ) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Yields inputs by name and the labels of each batch. `shuffle` draws the order."""
        for batch in self.numbered(shuffle):
            yield self._inputs(batch), batch[LABELS].to(self.device)

    def outputs(self, shuffle: torch.Generator | None = None) -> Iterator[Answered]:
        """Yields the model's output, the labels and all columns of each batch."""
        for step, batch in enumerate(self.numbered(shuffle)):
            labels = batch[LABELS].to(self.device)
            output = self._run(self._inputs(batch), is_first=step == 0)
            if step == 0 and self.task.is_categorical:
                answers = read_answers(output, self.task, len(labels))
                self.task.check(answers, self.rows.labels, labels)
                warn_about_other_logits(output, self.rows.labels, self.task)
            yield Answered(output, labels, batch)
            del output  # large logits are gone before the next ones are made

    def numbered(self, shuffle: torch.Generator | None = None) -> Iterator[dict[str, Tensor]]:
        """Yields all columns of each batch, with `ROW`, on the CPU."""
        numbered = {**self.rows.columns, ROW: torch.arange(len(self.rows))}
        rows, pad_id = dataclasses.replace(self.rows, columns=numbered), padding_token(self.model)
        return rows.batches(self.batch_size, pad_id=pad_id, shuffle=shuffle)

    def token_mask(self, columns: dict[str, Tensor]) -> Tensor | None:
        """Returns the `attention_mask` of a batch, or 1 for tokens and 0 for padding, (B, T).

        Without padding there is none.
        """
        if "attention_mask" in columns or self.rows.lengths is None:
            return columns.get("attention_mask")
        lengths = self.rows.lengths[columns[ROW]]
        return (torch.arange(int(lengths.max())) < lengths[:, None]).long()

    def _inputs(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: batch[column].to(self.device) for name, column in self.columns.items()}

    def _run(self, fed: dict[str, Tensor], is_first: bool = False) -> Any:
        try:
            return self.model(**fed)
        except ChopError:
            raise
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, IndexError) and LABELS in fed and "Target" in str(error):
                raise ConfigError(
                    f"task '{self.task.name}': the model's own loss rejects the labels: {error}"
                ) from error
            if not is_first or isinstance(error, torch.OutOfMemoryError) or reached_limit(error):
                raise
            listed = ", ".join(f"{name} {tuple(x.shape)}" for name, x in fed.items())
            reason = f"{type(error).__name__}: {first_line(error).removesuffix('.')}."
            raise ConfigError(
                f"{type(self.model).__name__} cannot take the rows, {listed}: {reason}"
                f"{self.rows.about_vector}"
                f"{advise_inputs(self.model, fed, reason, self.rows.columns)}"
            ) from error


def bound_task(task: Task, model: nn.Module, rows: Rows) -> Task:
    """Binds a task to the output shapes of a model if the task needs them, see `Task.bind`.

    Args:
        task: bound or unbound task.
        model: called on a few rows if the task is unbound.
        rows: labeled.
    Raises:
        ConfigError: if labels and outputs do not match.
    """
    if task.bind is None:
        return task
    few = rows.spread(2)
    (batch,) = few.batches(len(few), pad_id=padding_token(model))
    place = next(model.parameters(), torch.empty(0)).device
    columns = fed_columns(model, rows.columns, task)
    with torch.no_grad(), torch.random.fork_rng(), eval_mode(model):
        output = model(**{name: batch[column].to(place) for name, column in columns.items()})
    return task.bind(task, output, batch[LABELS].to(place), rows.parts)


def _check_padding(model: nn.Module, rows: Rows, task: Task) -> None:
    """Checks that most rows have no padding that counts as text.

    Records an assumption for tasks other than causal language models.

    Raises:
        ConfigError: if they begin or end with runs of the padding token, and no mask marks it.
    """
    token, ids = named_padding_token(model), rows.columns.get(IDS)
    if token is None or ids is None or MASK in rows.columns:
        return
    is_language = task.labels_from == IDS
    labels = rows.labels if is_language else ids
    pairs = [*zip(ids[:PADDING_SAMPLE], labels[:PADDING_SAMPLE], strict=True)]
    if 2 * sum(_is_padded(row, label, token) for row, label in pairs) <= len(pairs):
        return
    about = (
        f"most rows begin or end with several tokens {token}, the pad_token_id of the model, "
        f"and there is no {MASK}"
    )
    if not is_language:
        assume(
            f"{about[0].upper()}{about[1:]}: the model reads this padding as text. If it was "
            f"trained with the tokenizer's {MASK}, pass it too.",
            log,
        )
        return
    raise ConfigError(
        f"{about}, so the padding would be read and scored as text: pass the "
        f"tokenizer's {MASK} (1 for tokens, 0 for padding; all 1 if this is text). Labels "
        f"of {IGNORED} also exclude padding at the end."
    )


def _is_padded(row: Tensor, labels: Tensor, token: int) -> bool:
    """Returns true if a row begins with a run of a token, or ends with one that has labels."""
    others = (row != token).nonzero().flatten()
    first, end = (int(others[0]), int(others[-1]) + 1) if len(others) else (0, 0)
    scored = labels[end:] if labels.shape == row.shape else row[:0]
    return first >= LEAST_RUN or int((scored != IGNORED).sum()) >= LEAST_RUN


@contextmanager
def module_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Sets training or evaluation mode in a context and restores the mode of each module."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


eval_mode = partial(module_mode, training=False)
"""Context manager for evaluation mode that restores the mode of each module."""
