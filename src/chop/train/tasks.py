"""Tasks: how outputs meet labels, the training loss, and the metric.

Shapes: B rows, T tokens, C classes, K answers that are compared.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.errors import ConfigError, check_known
from chop.train.metrics import METRICS, REGRESSION_METRICS, perplexity

IGNORED = -100
"""The label of a position that counts neither in a loss nor in a metric."""

LEAVE_OUT = (
    f"classes count from 0: leave rows without a label out, or label them {IGNORED}, which "
    "neither loss nor metric counts."
)
NUMBERS = "numbers that are no classes are task 'regression'."
LEAST_SHARE = 0.00005
"""Smaller ones are 0.00% with two decimals."""

AT_ONCE = 64
"""Labels whose cross entropy is taken at a time: of large vocabularies it needs much memory."""

Pair = tuple[Tensor, Tensor]
"""Answers and the labels that they are compared with; the first dimension of both is K."""


def classes(answers: Tensor, labels: Tensor) -> Tensor:
    """The class of the largest logit: (K, C) to (K,)."""
    return answers.argmax(-1)


def values(answers: Tensor, labels: Tensor) -> Tensor:
    """The answers themselves."""
    return answers


def surprise(answers: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of each label in nats, float32: (K, C) and (K,) to (K,)."""
    parts = zip(answers.split(AT_ONCE), labels.split(AT_ONCE), strict=True)
    found = [F.cross_entropy(x.float(), y, reduction="none") for x, y in parts]
    return torch.cat(found) if found else answers.new_zeros(0, dtype=torch.float32)


@dataclass(frozen=True)
class Metric:
    """One number that says how good answers are.

    Attributes:
        name: in tables and results.
        score: (predictions (K, ...), labels (K, ...)) -> the number, over all rows at once.
        predict: (answers, labels) of a batch -> the predictions that `score` takes.
        higher_is_better: whether a larger number is a better model.
        is_share: printed in percent.
    """

    name: str
    score: Callable[[Tensor, Tensor], float]
    predict: Callable[[Tensor, Tensor], Tensor] = values
    higher_is_better: bool = True
    is_share: bool = False

    @property
    def title(self) -> str:
        """The name, and which way is better where it is the unusual one."""
        return self.name if self.higher_is_better else f"{self.name} (lower is better)"

    def key(self, value: float) -> float:
        """Sorts numbers: larger is better, and NaN is worst."""
        if math.isnan(value):
            return -math.inf
        return value if self.higher_is_better else -value

    def gain(self, value: float, reference: float) -> float:
        """How much better `value` is than `reference`, in the metric's own unit."""
        return value - reference if self.higher_is_better else reference - value

    def within(self, value: float, reference: float, drop: float) -> bool:
        """Whether `value` is worse than `reference` by at most `drop`.

        Where higher is better (accuracy, R2) the drop is absolute: value >= reference - drop.
        Else (perplexity, errors) it is a share: value <= reference * (1 + drop).
        """
        if self.higher_is_better:
            return value >= reference - drop
        return value <= reference * (1 + drop)

    def drop(self, value: float, reference: float) -> float:
        """How much worse `value` is than `reference`, in the unit of `within`."""
        worse = -self.gain(value, reference)
        return worse if self.higher_is_better or not reference else worse / reference

    def format_drop(self, drop: float) -> str:
        """A drop for a message: in percent where it is a share.

        >>> TASKS["classification"].metric.format_drop(0.0125)
        '1.25%'
        """
        if not self.is_share and self.higher_is_better:
            return f"{drop:.4g}"
        return f"{100 * drop:.2g}%" if 0 < abs(drop) < LEAST_SHARE else f"{drop:.2%}"

    def format_loss(self, value: float, reference: float) -> str:
        """How much worse `value` is than float's `reference`, for a message.

        Of an error of 0 there is no share; the difference itself is shown.
        """
        drop = self.drop(value, reference)
        if self.higher_is_better or reference:
            return self.format_drop(drop)
        return f"{drop:.4g} where float's {self.name} is 0, of which a share allows nothing"

    def format_value(self, value: float) -> str:
        """For a table.

        >>> TASKS["classification"].metric.format_value(0.5)
        '50.00%'
        >>> TASKS["causal-lm"].metric.format_value(20.0)
        '20'
        """
        return f"{value:.2%}" if self.is_share else f"{value:.5g}"


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
    """

    name: str
    metric: Metric
    loss: Callable[[Tensor, Tensor], Tensor]
    compare: Callable[[Tensor, Tensor], Pair] = _as_they_are
    is_categorical: bool = False
    takes_model_loss: bool = False
    labels_from: str | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict, repr=False)
    """Further metrics that may be asked for, by name."""

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
            raise ConfigError(f"task '{self.name}': the labels have fractions; {NUMBERS}")
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
            raise ConfigError(
                f"task '{self.name}': got the label {largest}, and the model answers with "
                f"{count} numbers, for the classes 0 to {count - 1}; {NUMBERS}"
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


def _unfit(task: str, wanted: str, logits: Tensor, labels: Tensor) -> ConfigError:
    return ConfigError(
        f"task '{task}': expected logits of {wanted}, got {tuple(logits.shape)} and "
        f"{tuple(labels.shape)}; the tasks are {', '.join(TASKS)}."
    )


def cross_entropy(answers: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy in nats, (K, C) and (K,), in the dtype of the answers; 0 of no labels."""
    if not len(labels):  # a batch of ignored rows: the mean of none, NaN, would become the weights
        return answers.sum()
    return F.cross_entropy(answers, labels)


_OF_CLASSES = {
    name: Metric(name, score, classes, is_share=name != "matthews_correlation")
    for name, score in METRICS.items()
}
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
_ROWS = (
    _over_classes("classification", "accuracy", _one_class_each, _OF_CLASSES),
    Task("regression", _OF_NUMBERS["r2"], F.mse_loss, _numbers, metrics=_OF_NUMBERS),
    _over_classes("token-classification", "accuracy", _one_class_per_token),
    _over_classes(CAUSAL_LM, "perplexity", _next_token, labels_from="input_ids"),
)
TASKS: dict[str, Task] = {row.name: row for row in _ROWS}
"""The tasks by name: accuracy of classes, R2 of numbers, accuracy of each token's class, and
perplexity of the next token."""
CLASSIFICATION = TASKS["classification"]


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


def _are_same(ids: Tensor | list[Tensor], labels: Tensor | list[Tensor]) -> bool:
    return all(
        row.shape == label.shape and bool(((row == label) | (label == IGNORED)).all())
        for row, label in zip(ids, labels, strict=True)
    )
