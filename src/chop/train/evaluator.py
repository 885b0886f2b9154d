"""Evaluation of models on the same rows, with batches that are built once.

Shapes: N rows, B rows per batch, C classes.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.kernels.matmul_precision import matmul_precision
from chop.nn import cached_weights
from chop.train.feed import Feed, eval_mode
from chop.train.model_io import read_answers
from chop.train.rows import Rows, read_rows, rows_per_batch
from chop.train.tasks import Task, find_task

BATCH_SIZE = 64
"""Default batch size, and the maximum for texts."""
DOUBLES = 2**24
"""Number of logits converted to double precision at once."""
BATCH_TOKENS = 4096
"""Tokens per batch of texts of usual length. Larger batches exceed the processor's cache."""


class Evaluator:
    """Evaluates a model on the same labeled rows repeatedly.

    Rows are sorted into batches of similar length, padded and copied to the model's device once.
    The model runs in evaluation mode under `torch.inference_mode`. Float32 products run at full
    precision, regardless of `torch.set_float32_matmul_precision`.

    Args:
        model: see `chop.train.model_io`.
        rows: labeled rows with texts tokenized, in any form that `chop.train.read_rows` takes.
        batch_size: rows per step; default `BATCH_SIZE`, fewer for long texts.
        task: a name of `chop.train.TASKS` or a `Task`; default, inferred from the labels.
    Raises:
        ConfigError: if no column matches an input of the model, there are no rows, or the batch
            size is below 1.

    Attributes:
        task: the task of the model.
        labels: int64 (N,), in the order of the batches and of `logits`; for token labels those that
            count, available after the first run.
    """

    def __init__(
        self,
        model: nn.Module,
        rows: Any,
        *,
        batch_size: int | None = None,
        task: str | Task | None = None,
    ) -> None:
        table = read_rows(rows, None if task is None else find_task(task))
        feed = Feed(model, table, BATCH_SIZE if batch_size is None else batch_size, task)
        if batch_size is None:
            feed.batch_size = rows_per_batch(model, table, feed.task, _usual_size(table))
        self.model, self.task, self._rows = model, feed.task, len(table)
        self.batches = list(feed.batches())
        is_one_each = self.batches[0][1].dim() == 1
        self._compared = {i: y for i, (_, y) in enumerate(self.batches) if is_one_each}
        self._sizes: dict[int, list[int]] = {}

    @property
    def sizes(self) -> list[int]:
        """The number of compared answers of each row, available after the first run."""
        return [size for part in self._sizes.values() for size in part]

    @property
    def labels(self) -> Tensor:
        """The labels that predictions are compared with; see the class."""
        return torch.cat(list(self._compared.values()))

    def __len__(self) -> int:
        """Returns the number of rows."""
        return self._rows

    def of(self, model: nn.Module) -> Evaluator:
        """Returns an evaluator of the same rows for another model with the same inputs."""
        evaluator = copy.copy(self)
        evaluator.model = model
        return evaluator

    def part(self, share: float) -> Evaluator:
        """Returns an evaluator of a share of the batches, evenly spaced, at least one."""
        evaluator, count = copy.copy(self), max(1, int(min(share, 1.0) * len(self.batches)))
        evaluator.batches = [self.batches[i * len(self.batches) // count] for i in range(count)]
        evaluator._rows = sum(len(labels) for _, labels in evaluator.batches)
        evaluator._compared, evaluator._sizes = {}, {}
        return evaluator

    def logits(self, on_batch: Callable[[list[Tensor]], None] | None = None) -> Tensor:
        """Returns logits (N, C) in the model's dtype, or for regression in the labels' shape.

        Args:
            on_batch: called after each batch with the logits of all batches so far. An exception in
                it ends the run.
        """
        answers: list[Tensor] = []
        with (
            torch.inference_mode(),
            matmul_precision("highest"),
            eval_mode(self.model),
            cached_weights(self.model),
        ):
            for i, (inputs, labels) in enumerate(self.batches):
                logits = read_answers(self.model(**inputs), self.task, len(labels))
                compared, self._compared[i] = self.task.compare(logits, labels)
                if i not in self._sizes:
                    self._sizes[i] = self._count_by_row(compared, logits, labels)
                answers.append(compared)
                if on_batch is not None:
                    on_batch(answers)
        return torch.cat(answers)

    def _count_by_row(self, compared: Tensor, logits: Tensor, labels: Tensor) -> list[int]:
        """Returns the number of compared answers of each row of a batch."""
        if len(compared) == len(labels):
            return [1] * len(labels)
        rows = zip(logits.split(1), labels.split(1), strict=True)
        return [len(self.task.compare(*row)[1]) for row in rows]

    def scores(self, logits_NC: Tensor) -> dict[str, float]:  # noqa: N803 (shape suffix)
        """Computes the metric and the loss of logits, which may cover only the first rows.

        Returns: the task's metric by its name (`accuracy`), or its worst value if it is NaN; and
            `loss`, for classes the cross entropy in nats, infinite if a logit is not finite.
        """
        labels, metric = self.labels[: len(logits_NC)], self.task.metric
        value = metric.score(*metric.read(logits_NC, labels))
        loss = float(self.task.loss(logits_NC.float(), labels))
        worst = -math.inf if metric.higher_is_better else math.inf
        return {
            metric.name: value if value == value else worst,
            "loss": loss if loss == loss else math.inf,
        }


def _usual_size(rows: Rows) -> int:
    ids = rows.columns.get("input_ids")
    if ids is None or not len(ids):
        return BATCH_SIZE
    usual = statistics.median(len(row) for row in ids)
    return max(1, min(BATCH_SIZE, int(BATCH_TOKENS // max(usual, 1))))


def kl_divergence(reference_NC: Tensor, other_NC: Tensor) -> float:  # noqa: N803 (shape suffix)
    """Returns the mean over rows of KL(softmax(reference) || softmax(other)), in nats, at least 0.

    Args:
        reference_NC: logits.
        other_NC: logits of the same shape. The divergence is infinite if they are not finite.
    """
    return divergences(reference_NC, other_NC).mean().clamp(min=0).item()


def divergences(reference_NC: Tensor, other_NC: Tensor) -> Tensor:  # noqa: N803 (shape suffix)
    """Returns KL(softmax(reference) || softmax(other)) of each row in nats, float64 (N,).

    Args:
        reference_NC: logits.
        other_NC: logits of the same shape. The divergence is infinite if they are not finite.
    """
    part = max(1, DOUBLES // max(reference_NC[0].numel(), 1)) if len(reference_NC) else 1
    # In double precision each row takes several times the memory of its logits: work in parts.
    parts = []
    for logits in zip(reference_NC.split(part), other_NC.split(part), strict=True):
        p, q = (x.double().log_softmax(-1) for x in logits)
        parts.append(F.kl_div(q, p, reduction="none", log_target=True).sum(-1))
    divergences = torch.cat(parts)
    return divergences.masked_fill(divergences.isnan(), math.inf)
