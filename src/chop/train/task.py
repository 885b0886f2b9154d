"""Task: how outputs of a model meet labels, its training loss, and its metric.

Shapes: B rows, C classes, K answers that are compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from chop.base.plugins import Registry
from chop.errors import ConfigError, check_known
from chop.train.metric import Metric

IGNORED = -100
"""The label of a position that counts neither in a loss nor in a metric."""

LEAVE_OUT = (
    f"classes count from 0: leave rows without a label out, or label them {IGNORED}, which "
    "neither loss nor metric counts."
)
SIGNS = "got the labels -1 and 1: classes count from 0, which (labels + 1) // 2 does."
Pair = tuple[Tensor, Tensor]
"""Answers and the labels that they are compared with; the first dimension of both is K."""
Labels = Tensor | list[Tensor]
"""Labels of rows: a tensor, or of rows that differ in length a list."""
UNTOLD = "untold"
"""The name of the task of a model that a function of the user's judges, and no task was named."""


def _as_they_are(answers: Tensor, labels: Tensor) -> Pair:
    return answers, labels


def _last_size(logits: Tensor) -> int:
    """The size of the last dimension."""
    return logits.shape[-1]


@dataclass(frozen=True)
class Task:
    """Kind of question that a model answers.

    Attributes:
        name: name for users.
        metric: the metric.
        loss: (answers, labels) -> the mean loss, a scalar; what is trained.
        compare: (logits, labels) of a batch -> what of them is compared.
        is_categorical: answers are logits over classes, their last dimension, so that entropies
            mean something.
        takes_model_loss: a loss that the model computes itself wins over `loss`.
        labels_from: the column that stands in for labels where there are none.
        output_loss: (output, labels) -> the mean loss, a scalar, in the place of `loss`: a function
            of the user's, which takes what the model returns as it is.
        reads_all: answers are all numbers that the model returns for a row, (B, D); else logits.
        fits: returns true if logits and labels may be meant for the task, for messages.
        classes: number of classes that logits are over.
        void: another label beside `IGNORED` that does not count, where the classes are fewer.
        is_one_class: returns true if expected answers, as the metric takes them, are one class, on
            which no metric tells anything.
        one_class_hint: sentence on the commonest reason of that.
        heads: answers that a model needs for labels. None leaves a model as it is.
        takes_names: labels may be texts, or names of folders.
        auto_task: kind of model in transformers; None: a classifier of texts or pictures.
        inferred_note: assumption to report where the task was inferred from the labels.
        parts: of several outputs, the task of each by name.
        bind: (task, output, labels, parts of the labels) -> the task with the shapes of a model's
            outputs, without which it cannot be used; None: it needs none.
        layout: of a bound task of several outputs, a `chop.train.outputs.Layout`.
        read: (output, rows) -> the answers (B, W) of several outputs; None: logits are read.
        metrics: further metrics that may be asked for, by name.
        summary: phrase that tells what a model answers, for help.
    """

    name: str
    metric: Metric
    loss: Callable[[Tensor, Tensor], Tensor]
    compare: Callable[[Tensor, Tensor], Pair] = _as_they_are
    is_categorical: bool = False
    takes_model_loss: bool = False
    labels_from: str | None = None
    output_loss: Callable[[Any, Tensor], Tensor] | None = None
    reads_all: bool = False
    fits: Callable[[Tensor, Tensor], bool] | None = field(default=None, repr=False)
    classes: Callable[[Tensor], int] = field(default=_last_size, repr=False)
    void: int | None = None
    is_one_class: Callable[[Tensor], bool] | None = field(default=None, repr=False)
    one_class_hint: str = ""
    heads: Callable[[Labels], int] | None = field(default=None, repr=False)
    takes_names: bool = False
    auto_task: str | None = None
    inferred_note: str = ""
    parts: Mapping[str, Task] = field(default_factory=dict, repr=False)
    bind: Callable[[Task, Any, Tensor, Any], Task] | None = field(default=None, repr=False)
    layout: Any = field(default=None, repr=False)
    read: Callable[[Any, int], Tensor] | None = field(default=None, repr=False)
    metrics: Mapping[str, Metric] = field(default_factory=dict, repr=False)
    summary: str = field(default="", repr=False)

    @property
    def can_train(self) -> bool:
        """True if there is a loss for training."""
        return self.output_loss is not None or self.name != UNTOLD

    def with_metric(self, metric: str | Metric | Callable[..., float] | None) -> Task:
        """The task with another metric.

        Args:
            metric: a name, a `Metric`, or a function (predictions, labels) -> float of which
                higher is better and whose predictions are those of the task's own metric.
        Raises:
            ConfigError: the task has no metric of that name.
        """
        if metric is None:
            return self
        if isinstance(metric, str):
            known = {**self.metrics, self.metric.name: self.metric}
            check_known(metric, known, "unknown metric")
            return dataclasses.replace(self, metric=known[metric])
        if not isinstance(metric, Metric):
            name = getattr(metric, "__name__", type(metric).__name__)
            metric = Metric(name, metric, self.metric.predict, expect=self.metric.expect)
        return dataclasses.replace(self, metric=metric)

    def check_labels(self, labels: Tensor | list[Tensor]) -> None:
        """Raises ConfigError where some labels are no classes, whatever the model.

        Labels are whole and count from 0; `IGNORED` and `void` are none, but not all of them may be
        that.
        """
        if self.layout is not None:
            for name, part in self.layout.split(labels).items():
                self.parts[name].check_labels(part)
        if not self.is_categorical or not len(labels):
            return
        flat = _flat(labels)
        if flat.is_floating_point() and bool((flat != flat.round()).any()):
            raise ConfigError(
                f"task '{self.name}': the labels have fractions; numbers that are no classes are "
                "task 'regression'."
            )
        if not len(flat) or (int(flat.min()) >= 0 and self.void is None):
            return
        is_ignored = (flat == IGNORED) if self.void is None else _are_in(flat, IGNORED, self.void)
        wrong = ((flat < 0) & ~is_ignored).nonzero()[:, 0]
        is_of_rows = isinstance(labels, Tensor) and labels.dim() == 1
        if is_of_rows and set(flat.unique().tolist()) == {-1, 1}:
            raise ConfigError(f"task '{self.name}': {SIGNS}")
        if len(wrong):
            ends = torch.tensor([row.numel() for row in labels]).cumsum(0)
            row = int(torch.searchsorted(ends, wrong[0].cpu(), right=True))
            raise ConfigError(
                f"task '{self.name}': row {row} has the label {int(flat[wrong[0]])}, one of "
                f"{len(wrong)} negative labels, and {LEAVE_OUT}"
            )
        if bool(is_ignored.all()):
            raise ConfigError(
                f"task '{self.name}': every label is {self._uncounted}, which neither loss nor "
                "metric counts: expected some classes, counted from 0."
            )

    def check(self, logits: Tensor, labels: Tensor | list[Tensor]) -> None:
        """Raises ConfigError where some labels are beyond the classes of the logits."""
        if not self.is_categorical or not len(labels):
            return
        flat, count = _flat(labels), self.classes(logits)
        if self.void is not None and self.void >= count:
            flat = flat[flat != self.void]
        largest = int(flat.max()) if len(flat) else 0
        if largest >= count:
            raise beyond_classes(self, largest, logits, labels)

    @property
    def _uncounted(self) -> str:
        return str(IGNORED) if self.void is None else f"{IGNORED} or {self.void}"


TASKS: Registry[Task] = Registry("tasks", kind=Task, own_name=lambda task: task.name)
"""Tasks by name: those of chop, which `chop.train.tasks` declares, and those of other packages."""


def _flat(labels: Tensor | list[Tensor]) -> Tensor:
    if isinstance(labels, Tensor):
        return labels.flatten()
    return torch.cat([row.flatten() for row in labels])


def _are_in(flat: Tensor, *values: int) -> Tensor:
    return torch.isin(flat, flat.new_tensor(values))


def unfit(task: str, wanted: str, logits: Tensor, labels: Tensor) -> ConfigError:
    """The error for logits and labels of other shapes than a task takes."""
    return ConfigError(
        f"task '{task}': expected logits of {wanted}, got {tuple(logits.shape)} and "
        f"{tuple(labels.shape)}; {suggested(logits, labels, task)}"
    )


def beyond_classes(task: Task, label: int, logits: Tensor, labels: Labels) -> ConfigError:
    """The error for a label that is none of the classes of the logits."""
    count = task.classes(logits)
    numbers = f"{count} number{'s' * (count > 1)}"
    if task.classes is not _last_size:
        numbers = f"{count} classes"
    given = labels if isinstance(labels, Tensor) else _flat(labels)
    classes = _flat(labels)[_flat(labels) >= 0]
    if label == count > 1 and int(classes.min()) == 1:
        hint = "classes are numbered from 0, and these begin at 1: subtract 1 from the labels."
    else:
        hint = suggested(logits, given, task.name)
    return ConfigError(
        f"task '{task.name}': got the label {label}, and the model answers with {numbers}, for the "
        f"classes 0 to {count - 1}; {hint}"
    )


def suggested(logits: Tensor, labels: Tensor, tried: str) -> str:
    """Names other tasks than `tried` that such logits and labels may be meant for."""
    fitting = [x.name for x in TASKS.values() if x.fits and x.fits(logits, labels)]
    names = [f"'{name}'" for name in fitting if name != tried]
    if not names:
        return f"the tasks are {', '.join(TASKS)}."
    return f"logits and labels like these are of task {' or '.join(names)}: --task says which."


def are_one_hot(labels: Labels) -> bool:
    """Returns true if labels (B, C) are 0 but for one 1 in each row."""
    if not isinstance(labels, Tensor) or labels.dim() != 2 or labels.shape[1] < 2:
        return False
    is_bit = (labels == 0) | (labels == 1)
    return bool(is_bit.all()) and bool((labels.sum(1) == 1).all())


def one_class(labels: Tensor) -> bool:
    """Returns true if all labels that count are one class."""
    counted = labels[labels != IGNORED]
    return bool(len(counted)) and bool((counted == counted[0]).all())
