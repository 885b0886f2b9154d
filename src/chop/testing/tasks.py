"""Laws of tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from chop.testing.laws import obeys
from chop.train import TASKS, Task


@dataclass(frozen=True)
class Answered:
    """Task with a model's answers and their labels."""

    name: str
    answers: Tensor
    labels: Tensor

    @property
    def label(self) -> str:
        """Name of the task, for messages."""
        return self.name

    @property
    def task(self) -> Task:
        """The task."""
        return TASKS[self.name]

    def score(self, answers: Tensor) -> float:
        """Returns the metric of answers."""
        metric = self.task.metric
        return metric.score(*metric.read(*self.task.compare(answers, self.labels)))


def check_task(name: str, answers: Tensor, labels: Tensor) -> None:
    """Checks a task by all laws on correct answers.

    Args:
        name: name in `chop.train.TASKS`.
        answers: output of a model, correct for all rows. Rows differ.
        labels: labels of the rows.
    Raises:
        AssertionError: if a law is broken; the message names it.

    Example:
        >>> check_task("classification", 9 * torch.eye(3), torch.arange(3))
    """
    case = Answered(name, answers, labels)
    for law in (
        _it_is_registered_by_its_name,
        _labels_fit_the_answers,
        _right_answers_score_better_than_wrong_ones,
        _the_loss_is_a_scalar_with_a_gradient,
        _right_answers_have_the_smaller_loss,
    ):
        obeys(law, case)


def _it_is_registered_by_its_name(case: Answered) -> None:
    """`--task` finds a task by its name."""
    assert case.name in TASKS, "no task of that name"


def _labels_fit_the_answers(case: Answered) -> None:
    """The task accepts the labels, and compares equally many answers and labels."""
    case.task.check_labels(case.labels)
    answers, labels = case.task.compare(case.answers, case.labels)
    assert len(answers) == len(labels), f"{len(answers)} answers, {len(labels)} labels"


def _right_answers_score_better_than_wrong_ones(case: Answered) -> None:
    """The metric is a finite Python number with the correct direction."""
    right, wrong = case.score(case.answers), case.score(case.answers.roll(1, 0))
    assert isinstance(right, int | float), f"the metric is a {type(right).__name__}, not a number"
    assert math.isfinite(right), f"right answers score {right}"
    is_better = right > wrong if case.task.metric.higher_is_better else right < wrong
    assert is_better, f"right answers score {right:.6g}, those of other rows {wrong:.6g}"


def _the_loss_is_a_scalar_with_a_gradient(case: Answered) -> None:
    """The loss can be used in training."""
    answers = case.answers.roll(1, 0).requires_grad_()
    loss = case.task.loss(*case.task.compare(answers, case.labels))
    assert loss.dim() == 0 and bool(loss.isfinite()), f"got {loss}"
    loss.backward()
    gradient = answers.grad
    assert gradient is not None and bool(gradient.any()) and bool(gradient.isfinite().all())


def _right_answers_have_the_smaller_loss(case: Answered) -> None:
    """Training leads to correct answers."""
    with torch.no_grad():
        right, wrong = (
            case.task.loss(*case.task.compare(answers, case.labels))
            for answers in (case.answers, case.answers.roll(1, 0))
        )
    assert right < wrong, f"right answers have the loss {right:.6g}, wrong ones {wrong:.6g}"
