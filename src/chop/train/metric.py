"""Metrics of tasks: predictions from answers, their score, and its direction.

Shapes: K answers that are compared, C classes, L labels of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST_SHARE = 0.00005
"""Smaller ones are 0.00% with two decimals."""

AT_ONCE = 64
"""Labels whose cross entropy is taken at a time: of large vocabularies it needs much memory."""


def classes(answers: Tensor, labels: Tensor) -> Tensor:
    """The class of the largest logit: (K, C) to (K,)."""
    return answers.argmax(-1)


def values(answers: Tensor, labels: Tensor) -> Tensor:
    """The answers themselves."""
    return answers


def surprise(answers: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of each label in nats, float32: (K, C) and (K,) to (K,)."""
    parts = zip(answers.split(AT_ONCE), labels.split(AT_ONCE), strict=True)
    losses = [F.cross_entropy(x.float(), y, reduction="none") for x, y in parts]
    return torch.cat(losses) if losses else answers.new_zeros(0, dtype=torch.float32)


def positives(answers: Tensor, labels: Tensor) -> Tensor:
    """Returns 1 for each positive logit (probability above one half), else 0, as int64."""
    return (answers > 0).long()


def confidences(answers: Tensor, labels: Tensor) -> Tensor:
    """Returns the logits, by which ranking metrics sort rows."""
    return answers


def _expected_labels(predictions: Tensor, labels: Tensor) -> Tensor:
    """The labels themselves."""
    return labels


@dataclass(frozen=True)
class Constant:
    """The best answer that looks at no input.

    Attributes:
        about: sentence part on it.
        answer: expected labels -> the predictions of that answer.
    """

    about: str
    answer: Callable[[Tensor], Tensor]


def _mean_of_each(labels: Tensor) -> Tensor:
    return labels.double().mean(0, keepdim=True).expand_as(labels)


def _commonest_of_each(labels: Tensor) -> Tensor:
    return (labels.double().mean(0, keepdim=True) > 0.5).long().expand_as(labels)


def _commonest(labels: Tensor) -> Tensor:
    return torch.full_like(labels, int(labels.mode().values))


COMMONEST = "always answering the commonest class"
CONSTANTS: dict[Callable[[Tensor, Tensor], Tensor], Constant] = {
    classes: Constant(COMMONEST, _commonest),
    positives: Constant(COMMONEST, _commonest_of_each),
    values: Constant("always answering the mean", _mean_of_each),
    confidences: Constant("the same confidence for every row", _mean_of_each),
}
"""By what a metric takes; tasks add theirs."""
GUESSED = "guessing each token by its frequency in the training rows"
"""The same of perplexity, which needs the training rows."""


@dataclass(frozen=True)
class Metric:
    """Score of a model's answers.

    Attributes:
        name: in tables and results.
        score: (predictions (K, ...), labels (K, ...)) -> the number, over all rows at once.
        predict: (answers, labels) of a batch -> the predictions that `score` takes.
        higher_is_better: true if a larger number is a better model.
        is_share: printed in percent.
        is_relative: a drop is a share of the reference, as it is wherever lower is better.
        expect: (predictions, labels) of a batch -> the labels as `score` takes them.
        parts: (predictions, labels) -> scores of several outputs by name; None of one.
        constant: labels as `score` takes them -> the score of the best constant answer; None: see
            `CONSTANTS`.
    """

    name: str
    score: Callable[[Tensor, Tensor], float]
    predict: Callable[[Tensor, Tensor], Tensor] = values
    higher_is_better: bool = True
    is_share: bool = False
    is_relative: bool = False
    expect: Callable[[Tensor, Tensor], Tensor] = _expected_labels
    parts: Callable[[Tensor, Tensor], Mapping[str, float]] | None = None
    constant: Callable[[Tensor], float | None] | None = None

    def read(self, answers: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions and labels of a batch as `score` takes them, for rows to be joined."""
        predictions = self.predict(answers, labels)
        return predictions, self.expect(predictions, labels)

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
        """Returns the gain of `value` over `reference`, in the metric's own unit."""
        return value - reference if self.higher_is_better else reference - value

    def within(self, value: float, reference: float, drop: float) -> bool:
        """Returns true if `value` is worse than `reference` by at most `drop`.

        Where higher is better (accuracy, R2) the drop is absolute: value >= reference - drop.
        Else (perplexity, errors, numbers of a user's function) it is a share of the reference:
        value <= reference * (1 + drop).
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
        """A drop for a message: in percent where it is a share.

        >>> Metric("accuracy", math.dist, is_share=True).format_drop(0.0125)
        '1.25%'
        """
        if not self.is_share and not self._takes_share:
            return f"{drop:.4g}"
        return f"{100 * drop:.2g}%" if 0 < abs(drop) < LEAST_SHARE else f"{drop:.2%}"

    def format_loss(self, value: float, reference: float) -> str:
        """Formats the loss of `value` against the float model's `reference`, for a message.

        Of an error of 0 there is no share; the difference itself is shown.
        """
        drop = self.drop(value, reference)
        if not self._takes_share or reference:
            return self.format_drop(drop)
        return f"{drop:.4g} where float's {self.name} is 0, of which a share allows nothing"

    def format_value(self, value: float) -> str:
        """For a table.

        >>> Metric("accuracy", math.dist, is_share=True).format_value(0.5)
        '50.00%'
        >>> Metric("perplexity", math.dist, higher_is_better=False).format_value(20.0)
        '20'
        """
        return f"{value:.2%}" if self.is_share else f"{value:.5g}"
