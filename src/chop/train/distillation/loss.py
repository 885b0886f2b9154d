"""Training loss with a teacher, and rows without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.notices import assume
from chop.errors import ConfigError
from chop.private.torch_api import BATCH_NORMS
from chop.train.distillation.hidden_states import HiddenStates
from chop.train.distillation.settings import Distillation
from chop.train.distillation.soft_losses import soft_losses
from chop.train.distillation.teacher import (
    Teacher,
    answers_as_labels,
    check_class_order,
    get_class_names,
    infer_unlabeled_task,
)
from chop.train.feed import Answered, Feed, eval_mode
from chop.train.given.reading import NoLabelsError
from chop.train.model_io import batch_loss, read_answers
from chop.train.task import Task
from chop.train.unlabeled import read_inputs


def labeled_feed(
    model: nn.Module,
    rows: Any,
    batch_size: int,
    task: str | Task | None,
    device: str | torch.device | None,
    distill: Distillation | None,
) -> tuple[Feed, bool]:
    """Returns the batches to train on, and true if they have labels.

    Args:
        model: model to train.
        rows: as for `Feed`; with distillation, also rows without labels, see `read_inputs`.
        batch_size: rows per batch.
        task: task of the model; without labels, by default inferred from the teacher's outputs.
        device: see `Feed`.
        distill: settings; None requires labels.
    Raises:
        ConfigError: there are no labels, and they have a part of the loss.
    """
    if distill is not None and isinstance(rows, Iterator):  # read twice if it has no labels
        rows = list(rows)
    try:
        return Feed(model, rows, batch_size, task, device), True
    except NoLabelsError:
        if distill is None:
            raise
        distill.check_needs_no_labels()
    inputs = read_inputs(model, rows)
    if task is None:
        task = infer_unlabeled_task(Teacher.of(distill.teacher), inputs)
    assume(f"The rows have no labels: only the teacher is used, as task {_name(task)}.")
    feed = Feed(model, inputs, batch_size, task, device)
    feed.without_own_loss()
    return feed, False


def _name(task: str | Task) -> str:
    return task if isinstance(task, str) else task.name


@contextmanager
def training_loss(
    feed: Feed, distill: Distillation | None, has_labels: bool
) -> Iterator[Callable[[Answered], Tensor]]:
    """Context manager that gives the loss of a batch: the task's, or one with a teacher.

    Args:
        feed: batches and the model to train.
        distill: settings with a teacher; None uses the task's loss.
        has_labels: false if only the teacher trains.
    Raises:
        ConfigError: the task has no comparison with a teacher, a setting does not apply to it, or
            the model shares trained parameters with the teacher.
    """
    if distill is None:
        yield lambda batch: batch_loss(batch.output, batch.labels, feed.task)
        return
    teacher = Teacher.of(distill.teacher)
    _check_is_separate(feed.model, teacher.model)
    check_class_order(get_class_names(feed.model), teacher.model)
    own = teacher.on(feed.device)
    settings = distill.resolve(feed.task, has_labels=has_labels)
    kind, hidden = settings.hidden, None
    if kind is not None and kind != "none":
        hidden = HiddenStates(feed.model, own, kind, settings.matched)
    try:
        yield Distiller(settings, feed, teacher, hidden, has_labels)
    finally:
        if hidden is not None:
            hidden.remove()


class Distiller:
    """Training loss with a teacher; see `training_loss`.

    Args:
        settings: settings with the defaults of the task.
        feed: batches and the model to train.
        teacher: the teacher.
        hidden: compared layers, or None.
        has_labels: false if only the teacher trains.
    """

    def __init__(
        self,
        settings: Distillation,
        feed: Feed,
        teacher: Teacher,
        hidden: HiddenStates | None,
        has_labels: bool,
    ) -> None:
        self.settings = settings
        self.feed, self.teacher, self.hidden = feed, teacher, hidden
        self._has_labels, self._soft = has_labels, soft_losses(feed.task)

    def __call__(self, batch: Answered) -> Tensor:
        """Returns the loss of a batch."""
        task, count, alpha = self.feed.task, len(batch.labels), self.settings.alpha
        assert alpha is not None, "resolved for the task"
        losses, mask = [], self.feed.token_mask(batch.columns)
        if alpha < 1:
            losses.append((1 - alpha) * batch_loss(batch.output, batch.labels, task))
        if alpha > 0:
            answers = read_answers(batch.output, task, count)
            goal = self.teacher.answers(batch, self.feed, answers, is_stored=self.hidden is None)
            labels = batch.labels
            if not self._has_labels:
                labels = answers_as_labels(task, goal, mask)
            losses.append(alpha * self._compare(answers, goal, labels))
        elif self.hidden is not None:
            self.teacher.run(batch.columns, self.feed.device)
        if self.hidden is not None:
            weight = self.settings.hidden_weight
            assert weight is not None, "resolved for the task"
            losses.append(weight * self.hidden.loss(mask))
        return torch.stack([loss.to(losses[-1].dtype) for loss in losses]).sum()

    def _compare(self, answers: Tensor, goal: Tensor, labels: Tensor) -> Tensor:
        """Returns the soft loss; of several outputs their sum, as of their losses."""
        task, temperature = self.feed.task, self.settings.temperature
        assert temperature is not None, "resolved for the task"
        x, y, expected = _compared(task, answers, goal, labels)
        if task.layout is None:
            return self._soft[task.name](x, y, expected, temperature)
        pairs = zip(
            task.layout.pairs(answers, labels), task.layout.pairs(goal, labels), strict=True
        )
        return torch.stack(
            [self._soft[name](x, y, own, temperature) for (name, _, x, own), (*_, y, _) in pairs]
        ).sum()


def check_same_outputs(feed: Feed, teacher: Teacher) -> None:
    """Raises ConfigError if a teacher's outputs for a batch have another shape than the model's."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), eval_mode(feed.model):
        batch = next(feed.outputs())
        goal = teacher.run(batch.columns, feed.device)
    task, count = feed.task, len(batch.labels)
    answers, goal = (read_answers(x, task, count) for x in (batch.output, goal))
    _compared(task, answers, goal, batch.labels)


def _compared(
    task: Task, answers: Tensor, goal: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the compared outputs of the model and of the teacher, and their labels."""
    x, y, expected = answers, goal, labels
    if task.layout is None:
        (x, expected), (y, _) = task.compare(answers, labels), task.compare(goal, labels)
    if x.shape != y.shape:
        raise ConfigError(
            f"distill: the teacher's outputs have the shape {tuple(goal.shape)}, and the model's "
            f"{tuple(answers.shape)}; expected a teacher of the same task."
        )
    return x, y, expected


def _check_is_separate(model: nn.Module, teacher: nn.Module) -> None:
    """Raises ConfigError if training the model would change the teacher."""
    norms = (each for each in model.modules() if isinstance(each, BATCH_NORMS))
    changed = [x for each in norms for x in each.buffers()]  # averages over batches
    changed += [x for x in model.parameters() if x.requires_grad]
    addresses = {x.data_ptr() for x in changed if x.numel()}
    owned = chain(teacher.named_parameters(), teacher.named_buffers())
    shared = [name for name, x in owned if x.data_ptr() in addresses]
    if shared:
        raise ConfigError(
            f"distill: training the model would change the teacher, which shares {shared[0]} with "
            "it; pass a copy as the teacher: copy.deepcopy(model)."
        )
