"""Evaluator: measures models on the same rows; batches are made once and kept.

Shapes: N rows, B rows of a batch, C classes.
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
"""Rows of a batch; of texts, the most."""
DOUBLES = 2**24
"""Logits that are in double precision at once."""
BATCH_TOKENS = 4096
"""Of the usual length of a text, so many in a batch: more of them leave a processor's cache."""


class Evaluator:
    """Runs a model on the same labeled rows again and again.

    The rows are cut into batches of similar length, padded and put on the model's device once.
    The model runs in evaluation mode under `torch.inference_mode`, and products of float32 are made
    in float32, whatever `torch.set_float32_matmul_precision` allows.

    Args:
        model: see `chop.train.model_io`.
        rows: with labels, texts tokenized; what `chop.train.read_rows` takes.
        batch_size: rows of a step; None takes what is fast: `BATCH_SIZE`, of long texts fewer.
        task: what the model is asked to do: a name of `chop.train.TASKS` or a `Task`; None takes
            what the labels are.
    Raises:
        ConfigError: no input of the model can be fed, no rows, or a batch size below 1.

    Attributes:
        task: what the model is asked to do.
        labels: int64 (N,), in the order of the batches, which is that of `logits`; of tokens,
            those that count, once the model has run.
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

    @property
    def labels(self) -> Tensor:
        """What answers are compared with; see the class."""
        return torch.cat(list(self._compared.values()))

    def __len__(self) -> int:
        """The number of rows."""
        return self._rows

    def of(self, model: nn.Module) -> Evaluator:
        """The same rows for another model that takes the same inputs."""
        found = copy.copy(self)
        found.model = model
        return found

    def part(self, share: float) -> Evaluator:
        """A share of the batches, evenly spaced, at least one."""
        found, count = copy.copy(self), max(1, int(min(share, 1.0) * len(self.batches)))
        found.batches = [self.batches[i * len(self.batches) // count] for i in range(count)]
        found._rows = sum(len(labels) for _, labels in found.batches)
        found._compared = {}
        return found

    def logits(self, on_batch: Callable[[list[Tensor]], None] | None = None) -> Tensor:
        """The model's answers, (N, C) in the dtype of the model; of numbers, as the labels are.

        Args:
            on_batch: called after each batch with the answers of every batch so far; what it
                raises ends the run.
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
                answers.append(compared)
                if on_batch is not None:
                    on_batch(answers)
        return torch.cat(answers)

    def scores(self, logits_NC: Tensor) -> dict[str, float]:  # noqa: N803 (shape suffix)
        """What answers in the order of `logits` are worth; of the first rows, if fewer.

        Returns: the task's metric by its name (`accuracy`), the worst where it is no number; and
            `loss`, of classes the cross entropy in nats, infinite where an answer is no number.
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
    """Mean over the rows of KL(softmax(reference) || softmax(other)), in nats, at least 0.

    Args:
        reference_NC: logits.
        other_NC: logits, of the same shape. Where they are not finite the divergence is infinite.
    """
    return divergences(reference_NC, other_NC).mean().clamp(min=0).item()


def divergences(reference_NC: Tensor, other_NC: Tensor) -> Tensor:  # noqa: N803 (shape suffix)
    """KL(softmax(reference) || softmax(other)) of each row in nats, float64 (N,).

    Many answers over many classes are taken in parts: in double precision each takes several
    times the memory of its logits.

    Args:
        reference_NC: logits.
        other_NC: logits, of the same shape. Where they are not finite the divergence is infinite.
    """
    part = max(1, DOUBLES // max(reference_NC[0].numel(), 1)) if len(reference_NC) else 1
    found = []
    for logits in zip(reference_NC.split(part), other_NC.split(part), strict=True):
        p, q = (x.double().log_softmax(-1) for x in logits)
        found.append(F.kl_div(q, p, reduction="none", log_target=True).sum(-1))
    divergences = torch.cat(found)
    return divergences.masked_fill(divergences.isnan(), math.inf)
