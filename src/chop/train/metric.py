"""Metrics: predictions from model outputs, the score, and its direction.

Shapes: K compared answers, C classes, L labels per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.config import with_checked_init

LEAST_SHARE = 0.00005
"""Smallest share that two decimals distinguish from 0.00%."""

AT_ONCE = 64
"""Number of labels whose cross entropy is computed at once, to limit memory.
"""


def classes(answers: Tensor, labels: Tensor) -> Tensor:
    """Returns the class of the largest logit: (K, C) to (K,)."""
    return answers.argmax(-1)


def values(answers: Tensor, labels: Tensor) -> Tensor:
    """Returns the answers unchanged."""
    return answers


def surprise(answers: Tensor, labels: Tensor) -> Tensor:
    """Returns the cross entropy of each label in nats, float32: (K, C) and (K,) to (K,)."""
    parts = zip(answers.split(AT_ONCE), labels.split(AT_ONCE), strict=True)
    losses = [F.cross_entropy(x.float(), y, reduction="none") for x, y in parts]
    return torch.cat(losses) if losses else answers.new_zeros(0, dtype=torch.float32)


def positives(answers: Tensor, labels: Tensor) -> Tensor:
    """Returns 1 for each positive logit (probability above one half), else 0, as int64."""
    return (answers > 0).long()


def confidences(answers: Tensor, labels: Tensor) -> Tensor:
    """Returns the logits, which ranking metrics use to sort rows."""
    return answers


def predictions_of_task(answers: Tensor, labels: Tensor) -> Tensor:
    """Returns the answers unchanged. `Task.with_metric` replaces it by the task's own function."""
    return answers


def expected_labels(predictions: Tensor, labels: Tensor) -> Tensor:
    """Returns the labels unchanged."""
    return labels


@dataclass(frozen=True)
class Constant:
    """Best constant answer: the same prediction for every input.

    Attributes:
        about: phrase that describes it in a sentence.
        answer: labels -> predictions.
    """

    about: str
    answer: Callable[[Tensor], Tensor]


def _mean_of_each(labels: Tensor) -> Tensor:
    return labels.double().mean(0, keepdim=True).expand_as(labels)


def _commonest_of_each(labels: Tensor) -> Tensor:
    return (labels.double().mean(0, keepdim=True) > 0.5).long().expand_as(labels)


def _commonest(labels: Tensor) -> Tensor:
    return torch.full_like(labels, int(labels.mode().values))


COMMONEST = "always predicting the most common class"
CONSTANTS: dict[Callable[[Tensor, Tensor], Tensor], Constant] = {
    classes: Constant(COMMONEST, _commonest),
    positives: Constant(COMMONEST, _commonest_of_each),
    values: Constant("always predicting the mean", _mean_of_each),
    confidences: Constant("the same confidence for every row", _mean_of_each),
    predictions_of_task: Constant("always predicting the mean", _mean_of_each),
}
"""Constant answer by prediction function of a metric. Tasks add their own."""
LOWER_IS_BETTER = "chop.train.Metric(name, score, higher_is_better=False)"
"""Metric of a function of which lower is better, for messages."""
GUESSED = "guessing each token by its frequency in the training rows"
"""Description of the constant answer of perplexity, which needs the training rows."""


@with_checked_init
@dataclass(frozen=True)
class Metric:
    """Score of a model's answers.

    Attributes:
        name: name in tables and results.
        score: (predictions (K, ...), labels (K, ...)) -> number, computed over all rows at once.
        predict: (answers, labels) of a batch -> the predictions that `score` takes; default, those
            of the task's own metric, such as classes.
        higher_is_better: true if a larger number is a better model.
        is_share: true if it is printed in percent.
        is_relative: true if a drop is a share of the reference; implied if lower is better.
        expect: (predictions, labels) of a batch -> the labels as `score` takes them.
        parts: (predictions, labels) -> scores of several outputs by name; None for one output.
        constant: labels as `score` takes them -> score of the best constant answer; default from
            `CONSTANTS`.
    """

    name: str
    score: Callable[[Tensor, Tensor], float]
    predict: Callable[[Tensor, Tensor], Tensor] = predictions_of_task
    higher_is_better: bool = True
    is_share: bool = False
    is_relative: bool = False
    expect: Callable[[Tensor, Tensor], Tensor] = expected_labels
    parts: Callable[[Tensor, Tensor], Mapping[str, float]] | None = None
    constant: Callable[[Tensor], float | None] | None = None

    def read(self, answers: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns predictions and labels of a batch in the form that `score` takes."""
        predictions = self.predict(answers, labels)
        return predictions, self.expect(predictions, labels)

    @property
    def title(self) -> str:
        """Name of the metric, with the direction if lower is better."""
        return self.name if self.higher_is_better else f"{self.name} (lower is better)"

    def key(self, value: float) -> float:
        """Returns a sort key: larger is better, and NaN is worst."""
        if math.isnan(value):
            return -math.inf
        return value if self.higher_is_better else -value

    def gain(self, value: float, reference: float) -> float:
        """Returns the gain of `value` over `reference`, in the metric's own unit."""
        return value - reference if self.higher_is_better else reference - value

    def within(self, value: float, reference: float, drop: float) -> bool:
        """Returns true if `value` is worse than `reference` by at most `drop`.

        If higher is better (accuracy, R2), the drop is absolute: value >= reference - drop.
        Otherwise (perplexity, errors, user functions) it is a share of the reference: value <=
        reference * (1 + drop).
        """
        allowed = drop * abs(reference) if self._takes_share else drop
        if self.higher_is_better:
            return value >= reference - allowed
        return value <= reference + allowed

    @property
    def _takes_share(self) -> bool:
        return self.is_relative or not self.higher_is_better

    def drop(self, value: float, reference: float) -> float:
        """Returns the loss of `value` against `reference`, in the unit of `within`."""
        worse = -self.gain(value, reference)
        return worse / abs(reference) if self._takes_share and reference else worse

    def format_drop(self, drop: float) -> str:
        """Formats a drop for a message: shares of the reference in percent, differences of
        percentages in percentage points.

        >>> Metric("accuracy", math.dist, is_share=True).format_drop(0.0125)
        '1.25 percentage points'
        >>> Metric("perplexity", math.dist, higher_is_better=False).format_drop(0.0125)
        '1.25%'
        """
        if not self.is_share and not self._takes_share:
            return f"{drop:.4g}"
        number = f"{100 * drop:.2g}" if 0 < abs(drop) < LEAST_SHARE else f"{100 * drop:.2f}"
        return f"{number}%" if self._takes_share else f"{number} percentage points"

    def format_loss(self, value: float, reference: float) -> str:
        """Formats the loss of `value` against the float model's `reference`, for a message.

        If the reference is 0, the absolute difference is shown instead of a share.
        """
        drop = self.drop(value, reference)
        if not self._takes_share or reference:
            return self.format_drop(drop)
        return f"{drop:.4g} in absolute terms, as the float model's {self.name} is 0"

    def format_value(self, value: float) -> str:
        """Formats a value for a table.

        >>> Metric("accuracy", math.dist, is_share=True).format_value(0.5)
        '50.00%'
        >>> Metric("perplexity", math.dist, higher_is_better=False).format_value(20.0)
        '20'
        """
        return f"{value:.2%}" if self.is_share else f"{value:.5g}"
