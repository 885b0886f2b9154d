"""Losses that compare a model's outputs with a teacher's, for each kind of task.

Shapes: B rows, H rows and W columns of pixels, C classes, K compared outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from chop.errors import ConfigError
from chop.train.task import IGNORED, Task

SoftLoss = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""(outputs, teacher's outputs, labels, temperature) -> mean loss, a scalar; 0 without outputs.

Answers and labels have the form of the task's `compare`.
"""

LOGITS = 2**24
"""Number of logits that are compared at once."""


def class_divergence(
    answers: Tensor, teacher: Tensor, labels: Tensor, temperature: float
) -> Tensor:
    """Returns T^2 KL(softmax(teacher / T) || softmax(answers / T)) in nats, at least in float32.

    The factor T^2 makes gradients independent of the temperature to first order. A class with a
    logit of -inf has probability 0.

    Source: Hinton, Vinyals and Dean 2015, arXiv:1503.02531, section 2.

    Args:
        answers: logits (K, C).
        teacher: logits (K, C).
        labels: not used.
        temperature: T, above 0.

    Example:
        >>> x = torch.tensor([[0.0, 1.0, 2.0]])
        >>> class_divergence(x, x, torch.tensor([0]), 2.0).item()
        0.0
    """
    if not len(answers):
        return answers.sum()
    size = max(1, LOGITS // answers.shape[-1])
    if len(answers) <= size:
        total = _sum_of_divergences(answers, teacher, temperature)
    else:
        # Logits over a vocabulary are large: intermediate results of a part are computed again in
        # the backward pass.
        parts = zip(answers.split(size), teacher.split(size), strict=True)
        recompute = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        sums = [recompute(_sum_of_divergences, x, y, temperature) for x, y in parts]
        total = torch.stack(sums).sum()
    return temperature**2 * total / len(answers)


def _sum_of_divergences(answers: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    q, p = (x / temperature for x in _in_one_dtype(answers, teacher))
    q, p = q.log_softmax(-1), p.log_softmax(-1)
    return (p.exp() * (p - q)).masked_fill(p == -torch.inf, 0).sum()


def pixel_divergence(
    answers: Tensor, teacher: Tensor, labels: Tensor, temperature: float
) -> Tensor:
    """Returns `class_divergence` of the counted pixels.

    Args:
        answers: logits (B, H, W, C).
        teacher: logits (B, H, W, C).
        labels: (B, H, W); `IGNORED` excludes a pixel.
        temperature: see `class_divergence`.
    """
    counts = labels != IGNORED
    if not bool(counts.any()):
        return answers.sum() * 0
    return class_divergence(answers[counts], teacher[counts], labels, temperature)


def binary_divergence(
    answers: Tensor, teacher: Tensor, labels: Tensor, temperature: float
) -> Tensor:
    """Returns T^2 KL between the Bernoulli distributions of two logits, the mean over all outputs.

    Args:
        answers: logits of any shape.
        teacher: logits of that shape.
        labels: not used.
        temperature: see `class_divergence`.
    """
    if not len(answers):
        return answers.sum()
    q, p = (x / temperature for x in _in_one_dtype(answers, teacher))
    yes = p.sigmoid() * (F.logsigmoid(p) - F.logsigmoid(q))
    no = (-p).sigmoid() * (F.logsigmoid(-p) - F.logsigmoid(-q))
    return temperature**2 * (yes + no).mean()


def squared_difference(
    answers: Tensor, teacher: Tensor, labels: Tensor, temperature: float
) -> Tensor:
    """Returns the mean squared difference of two sets of numbers, which have no temperature.

    Args:
        answers: numbers of any shape.
        teacher: numbers of that shape.
        labels: not used.
        temperature: not used.
    """
    if not len(answers):
        return answers.sum()
    return F.mse_loss(*_in_one_dtype(answers, teacher))


def _in_one_dtype(answers: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Converts both to the wider dtype, at least float32."""
    wide = torch.promote_types(torch.promote_types(answers.dtype, teacher.dtype), torch.float32)
    return answers.to(wide), teacher.to(wide)


def soft_losses(task: Task) -> dict[str, SoftLoss]:
    """Returns the soft loss of a task by its name, or those of several outputs by output.

    Raises:
        ConfigError: a task has none.
    """
    tasks = {task.name: task} if task.layout is None else task.layout.tasks
    losses = {}
    for name, own in tasks.items():
        if own.soft_loss is None and not own.is_categorical:
            raise ConfigError(
                f"distill: task '{own.name}' has no comparison with a teacher; give "
                "Task(..., soft_loss=function), see chop.train.distillation.soft_losses."
            )
        losses[name] = own.soft_loss or class_divergence
    return losses
