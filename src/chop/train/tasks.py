"""Tasks: how outputs meet labels, the training loss, and the metric.

Shapes: B rows, T tokens, C classes, K answers that are compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Never

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.errors import ConfigError, check_known
from chop.train.binary_metrics import (
    BINARY_METRICS,
    CLASS_METRICS,
    MULTILABEL_METRICS,
    RANKING,
)
from chop.train.metric import Metric, classes, confidences, positives, surprise, values
from chop.train.metrics import METRICS, REGRESSION_METRICS, perplexity

IGNORED = -100
"""The label of a position that counts neither in a loss nor in a metric."""

LEAVE_OUT = (
    f"classes count from 0: leave rows without a label out, or label them {IGNORED}, which "
    "neither loss nor metric counts."
)
Pair = tuple[Tensor, Tensor]
"""Answers and the labels that they are compared with; the first dimension of both is K."""


def _as_they_are(answers: Tensor, labels: Tensor) -> Pair:
    return answers, labels


@dataclass(frozen=True)
class Task:
    """What a model is asked to do.

    Attributes:
        name: what users call it.
        metric: what is measured.
        loss: (answers, labels) -> the mean loss, a scalar; what is trained.
        compare: (logits, labels) of a batch -> what of them is compared.
        is_categorical: answers are logits over classes, so that entropies mean something.
        takes_model_loss: a loss that the model computes itself wins over `loss`.
        labels_from: the column that stands in for labels where there are none.
        output_loss: (output, labels) -> the mean loss, a scalar, in the place of `loss`: a function
            of the user's, which takes what the model returns as it is.
        reads_all: answers are all numbers that the model returns for a row, (B, D); else logits.
        fits: returns true if logits and labels may be meant for the task, for messages.
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
    metrics: Mapping[str, Metric] = field(default_factory=dict, repr=False)
    """Further metrics that may be asked for, by name."""

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
            metric = Metric(name, metric, self.metric.predict)
        return dataclasses.replace(self, metric=metric)

    def check_labels(self, labels: Tensor | list[Tensor]) -> None:
        """Raises ConfigError where some labels are no classes, whatever the model.

        Labels are whole and count from 0; `IGNORED` is none, but not all of them may be that.
        """
        if not self.is_categorical or not len(labels):
            return
        flat = _flat(labels)
        if flat.is_floating_point() and bool((flat != flat.round()).any()):
            raise ConfigError(
                f"task '{self.name}': the labels have fractions; numbers that are no classes are "
                "task 'regression'."
            )
        if not len(flat) or int(flat.min()) >= 0:
            return
        is_ignored = flat == IGNORED
        wrong = ((flat < 0) & ~is_ignored).nonzero()[:, 0]
        if len(wrong):
            ends = torch.tensor([row.numel() for row in labels]).cumsum(0)
            row = int(torch.searchsorted(ends, wrong[0].cpu(), right=True))
            raise ConfigError(
                f"task '{self.name}': row {row} has the label {int(flat[wrong[0]])}, one of "
                f"{len(wrong)} negative labels, and {LEAVE_OUT}"
            )
        if bool(is_ignored.all()):
            raise ConfigError(
                f"task '{self.name}': every label is {IGNORED}, which neither loss nor metric "
                "counts: expected some classes, counted from 0."
            )

    def check(self, logits: Tensor, labels: Tensor | list[Tensor]) -> None:
        """Raises ConfigError where some labels are beyond the classes of the logits."""
        if not self.is_categorical or not len(labels):
            return
        flat, count = _flat(labels), logits.shape[-1]
        largest = int(flat.max()) if len(flat) else 0
        if largest >= count:
            numbers = f"{count} number{'s' * (count > 1)}"
            raise ConfigError(
                f"task '{self.name}': got the label {largest}, and the model answers with "
                f"{numbers}, for the classes 0 to {count - 1}; {_suggested(logits, flat)}"
            )


def _flat(labels: Tensor | list[Tensor]) -> Tensor:
    if isinstance(labels, Tensor):
        return labels.flatten()
    return torch.cat([row.flatten() for row in labels])


# --- the tasks -----------------------------------------------------------------------------------


def _one_class_each(logits: Tensor, labels: Tensor) -> Pair:
    if logits.dim() != 2 or labels.dim() != 1:
        raise _unfit("classification", "(B, C) and labels of (B,)", logits, labels)
    return _counted(logits, labels, labels != IGNORED)


def _counted(logits: Tensor, labels: Tensor, counts: Tensor) -> Pair:
    if counts.all():  # mostly a view, where an index makes a copy
        return logits.flatten(0, counts.dim() - 1), labels.flatten().long()
    return logits[counts], labels[counts].long()


def _numbers(logits: Tensor, labels: Tensor) -> Pair:
    one = logits.squeeze(-1) if logits.dim() == labels.dim() + 1 else logits
    wanted = labels.squeeze(-1) if labels.dim() == one.dim() + 1 else labels
    if one.shape != wanted.shape:
        raise _unfit("regression", "the shape of the labels", logits, labels)
    return one, wanted.to(one.dtype)


def _one_class_per_token(logits: Tensor, labels: Tensor) -> Pair:
    if logits.dim() != 3 or logits.shape[:2] != labels.shape:
        raise _unfit("token-classification", "(B, T, C) and labels of (B, T)", logits, labels)
    return _counted(logits, labels, labels != IGNORED)


def _next_token(logits: Tensor, labels: Tensor) -> Pair:
    if logits.dim() != 3 or logits.shape[:2] != labels.shape:
        raise _unfit(CAUSAL_LM, "(B, T, C) and labels of (B, T)", logits, labels)
    return _one_class_per_token(logits[:, :-1], labels[:, 1:])


def _yes_or_no(logits: Tensor, labels: Tensor) -> Pair:
    if logits.dim() == 2 and logits.shape[1] == 2:  # the softmax of two is a sigmoid of one
        logits = logits[:, 1] - logits[:, 0]
    one = logits.squeeze(-1) if logits.dim() == 2 else logits
    wanted = labels.squeeze(-1) if labels.dim() == 2 else labels
    if one.dim() != 1 or one.shape != wanted.shape:
        raise _unfit(BINARY, "(B,), (B, 1) or (B, 2) and labels of (B,)", logits, labels)
    _check_zero_or_one(BINARY, wanted)
    counts = wanted != IGNORED
    return one[counts], wanted[counts].long()


def _labels_each(logits: Tensor, labels: Tensor) -> Pair:
    if logits.dim() != 2 or logits.shape != labels.shape:
        raise _unfit(MULTILABEL, "(B, L) and labels of (B, L)", logits, labels)
    _check_zero_or_one(MULTILABEL, labels)
    counts = (labels != IGNORED).all(1)
    return logits[counts], labels[counts].long()


def _check_zero_or_one(task: str, labels: Tensor) -> None:
    wrong = labels[(labels != 0) & (labels != 1) & (labels != IGNORED)]
    if len(wrong):
        raise ConfigError(
            f"task '{task}': got the label {wrong[0].item():g}, expected 0 or 1, or {IGNORED} of "
            "rows that do not count."
        )


def _are_zero_or_one(labels: Tensor) -> bool:
    return bool(((labels == 0) | (labels == 1) | (labels == IGNORED)).all())


def _unfit(task: str, wanted: str, logits: Tensor, labels: Tensor) -> ConfigError:
    return ConfigError(
        f"task '{task}': expected logits of {wanted}, got {tuple(logits.shape)} and "
        f"{tuple(labels.shape)}; {_suggested(logits, labels)}"
    )


def _suggested(logits: Tensor, labels: Tensor) -> str:
    """The tasks that such logits and labels may be meant for; which one it is the user says."""
    names = [f"'{name}'" for name, row in TASKS.items() if row.fits and row.fits(logits, labels)]
    if not names:
        return f"the tasks are {', '.join(TASKS)}."
    return f"logits and labels like these are of task {' or '.join(names)}: --task says which."


def cross_entropy(answers: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy in nats, (K, C) and (K,), in the dtype of the answers; 0 of no labels."""
    if not len(labels):  # a batch of ignored rows: the mean of none, NaN, would become the weights
        return answers.sum()
    return F.cross_entropy(answers, labels)


def binary_cross_entropy(answers: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of yes and no in nats, in the dtype of the answers; 0 of no labels."""
    if not len(labels):
        return answers.sum()
    return F.binary_cross_entropy_with_logits(answers, labels.to(answers.dtype))


def _of_yes_and_no(scores: Mapping[str, Callable[[Tensor, Tensor], float]]) -> dict[str, Metric]:
    return {
        name: Metric(
            name,
            score,
            confidences if name in RANKING else positives,
            higher_is_better=name != "hamming_loss",
            is_share=name not in ("matthews_correlation", *RANKING),
        )
        for name, score in scores.items()
    }


_OF_CLASSES = {
    name: Metric(name, score, classes, is_share=name != "matthews_correlation")
    for name, score in METRICS.items()
}
_OF_ROWS = {
    **_OF_CLASSES,
    "balanced_accuracy": Metric(
        "balanced_accuracy", CLASS_METRICS["balanced_accuracy"], classes, is_share=True
    ),
    "roc_auc": Metric("roc_auc", CLASS_METRICS["roc_auc"], confidences),
}
_OF_BINARY = _of_yes_and_no({"accuracy": METRICS["accuracy"], **BINARY_METRICS})
_OF_LABELS = _of_yes_and_no(MULTILABEL_METRICS)
_OF_TOKENS = {
    **_OF_CLASSES,
    "perplexity": Metric("perplexity", perplexity, surprise, higher_is_better=False),
}
_OF_NUMBERS = {
    name: Metric(name, score, values, higher_is_better=name not in ("mse", "mae"))
    for name, score in REGRESSION_METRICS.items()
}


def _over_classes(
    name: str,
    metric: str,
    compare: Callable[[Tensor, Tensor], Pair],
    metrics: Mapping[str, Metric] = _OF_TOKENS,
    labels_from: str | None = None,
) -> Task:
    return Task(
        name,
        metrics[metric],
        cross_entropy,
        compare,
        is_categorical=True,
        takes_model_loss=True,
        labels_from=labels_from,
        metrics=metrics,
    )


CAUSAL_LM = "causal-lm"
"""The task of models that continue texts."""
BINARY, MULTILABEL = "binary", "multilabel"
"""Tasks of yes and no: one answer a row, and several."""
_ROWS = (
    _over_classes("classification", "accuracy", _one_class_each, _OF_ROWS),
    Task(
        BINARY,
        _OF_BINARY["accuracy"],
        binary_cross_entropy,
        _yes_or_no,
        fits=lambda x, y: x.shape[1:] in ((), (1,)) and y.dim() == 1 and _are_zero_or_one(y),
        metrics=_OF_BINARY,
    ),
    Task(
        MULTILABEL,
        _OF_LABELS["f1"],
        binary_cross_entropy,
        _labels_each,
        fits=lambda x, y: x.dim() == 2 and x.shape[1:] == y.shape[1:] and _are_zero_or_one(y),
        metrics=_OF_LABELS,
    ),
    Task(
        "regression",
        _OF_NUMBERS["r2"],
        F.mse_loss,
        _numbers,
        fits=lambda x, y: x.shape[1:] in ((), (1,), y.shape[1:]),
        metrics=_OF_NUMBERS,
    ),
    _over_classes("token-classification", "accuracy", _one_class_per_token),
    _over_classes(CAUSAL_LM, "perplexity", _next_token, labels_from="input_ids"),
)
TASKS: dict[str, Task] = {row.name: row for row in _ROWS}
"""The tasks by name: accuracy of classes and of one yes or no, F1 of several, R2 of numbers,
accuracy of each token's class, and perplexity of the next token."""
CLASSIFICATION = TASKS["classification"]


UNTOLD = "untold"
"""The name of the task of a model that a function of the user's judges, and no task was named."""


def _no_loss(answers: Tensor, labels: Tensor) -> Never:
    raise ConfigError(
        "a function of yours judges the model, and nothing says which loss it is trained by: give "
        "--loss file.py:fn or --task."
    )


def _no_metric(predictions: Tensor, labels: Tensor) -> Never:
    raise ConfigError("a function of yours judges the model: it has no metric of rows.")


UNTOLD_TASK = Task(UNTOLD, Metric("untold", _no_metric), _no_loss, reads_all=True)


def find_task(task: str | Task) -> Task:
    """The task of that name, or the given one.

    Raises:
        ConfigError: there is none of that name; the message names the nearest.
    """
    if isinstance(task, Task):
        return task
    check_known(task, TASKS, "unknown task")
    return TASKS[task]


def check_metric_name(name: str) -> None:
    """Checks that some task has a metric of that name.

    Raises:
        ConfigError: none has; the message names the nearest.
    """
    known = {metric for task in TASKS.values() for metric in task.metrics}
    check_known(name, known, "unknown metric")


def infer_task(columns: Mapping[str, Tensor | list[Tensor]], labels: Tensor | list[Tensor]) -> Task:
    """The task that labels are of.

    Numbers with fractions are regression, one class each is classification; a label for each
    token is token classification, and causal language modeling where the labels are the tokens.
    """
    if isinstance(labels, Tensor) and labels.dim() < 2:
        return TASKS["regression" if labels.is_floating_point() else "classification"]
    first = labels[0]
    if first.is_floating_point():
        return TASKS["regression"]
    ids = columns.get("input_ids")
    is_language = ids is not None and _are_same(ids, labels)
    return TASKS[CAUSAL_LM if is_language else "token-classification"]


def check_is_clear(task: Task, labels: Tensor | list[Tensor]) -> None:
    """Checks that labels from which a task was inferred cannot well be meant for another.

    Raises:
        ConfigError: they are several numbers a row, all 0 or 1, which are rarely a regression.
    """
    if task.name != "regression" or not isinstance(labels, Tensor) or labels.dim() < 2:
        return
    if labels.shape[1] > 1 and _are_zero_or_one(labels):
        raise ConfigError(
            f"labels: got {labels.shape[1]} numbers a row, all 0 or 1: --task {MULTILABEL} takes "
            "them for answers yes and no, --task regression for numbers."
        )


def _are_same(ids: Tensor | list[Tensor], labels: Tensor | list[Tensor]) -> bool:
    return all(
        row.shape == label.shape and bool(((row == label) | (label == IGNORED)).all())
        for row, label in zip(ids, labels, strict=True)
    )
