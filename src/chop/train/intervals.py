"""Confidence of a metric: 95 % intervals, and the score of a constant answer.

Shapes: K answers that are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from chop.statistics.intervals import LEVEL_TEXT, Interval, bootstrap, wilson
from chop.train import metrics
from chop.train.metric import CONSTANTS, Metric, surprise
from chop.train.task import IGNORED

METRIC_DRAWS, LEAST_DRAWS, DRAWN_ANSWERS = 400, 100, 10**7
"""Of a bootstrap, see `draws_for`."""
FEW_ROWS = 100
"""With fewer rows, intervals are wider than the differences between most formats."""


@dataclass(frozen=True)
class Score:
    """A metric of a model on some rows.

    Attributes:
        value: the metric.
        interval: at the level `LEVEL`; None where it is unknown.
        constant: the metric of the best answer that looks at no input, see `constant_score`; None
            where that is unknown.
        rows: number of rows, each with one or (as in texts) several answers. 0 if a function of
            the user returns only one number.
        has_one_class: all labels are one class.
        parts: scores of several outputs by name.
        useless: those of `parts` that are no better than a constant answer, with its score.
    """

    value: float
    interval: Interval | None
    constant: float | None
    rows: int
    has_one_class: bool = False
    parts: Mapping[str, float] = field(default_factory=dict)
    useless: Mapping[str, float] = field(default_factory=dict)

    def format(self, metric: Metric) -> str:
        """The value with its interval, for a sentence."""
        return f"{metric.format_value(self.value)}{format_interval(self.interval, metric)}"

    def format_cell(self, metric: Metric) -> str:
        """The same for a table."""
        return format_cell(self.value, self.interval, metric)


def format_interval(interval: Interval | None, metric: Metric) -> str:
    """The interval in brackets, behind a value; "" where there is none."""
    if interval is None:
        return ""
    low, high = map(metric.format_value, interval)
    return f" ({LEVEL_TEXT} interval {low} to {high})"


def format_cell(value: float, interval: Interval | None, metric: Metric) -> str:
    """A value with its interval, for a table that says what is in brackets.

    >>> from chop.train.tasks import CLASSIFICATION
    >>> format_cell(0.9, (0.5958, 0.9821), CLASSIFICATION.metric)
    '90.00% (59.6 to 98.2)'
    """
    if interval is None:
        return metric.format_value(value)
    low, high = (f"{100 * end:.1f}" if metric.is_share else f"{end:.4g}" for end in interval)
    return f"{metric.format_value(value)} ({low} to {high})"


def interval_note(metric: Metric) -> str:
    """How the intervals of a metric are made, for a line below a table."""
    kind = "Wilson's" if metric.score is metrics.accuracy else "those of the bootstrap"
    return f"Intervals are {kind}, at {LEVEL_TEXT}."


def compute_interval(metric: Metric, predictions: Tensor, labels: Tensor) -> Interval | None:
    """The interval of a metric: Wilson's of an accuracy, else that of the bootstrap.

    Answers count as independent, tokens of one text too.

    Args:
        metric: the metric.
        predictions: (K, ...), what it takes.
        labels: (K, ...).
    Returns: None where some draw has no number.
    """
    if metric.score is metrics.accuracy:
        return wilson(int((predictions == labels).sum()), len(labels))
    try:
        count = len(labels)
        ends = bootstrap(lambda i: metric.score(predictions[i], labels[i]), count, draws_for(count))
    except Exception:  # of a user's function: it may refuse draws or answers of one class
        return None
    return None if any(map(math.isnan, ends)) else ends


def draws_for(answers: int) -> int:
    """Draws that tell how sure a metric is: many answers, which vary less, are drawn less often."""
    return max(LEAST_DRAWS, min(METRIC_DRAWS, DRAWN_ANSWERS // max(answers, 1)))


def constant_score(
    metric: Metric, labels: Tensor, frequencies: Callable[[], Tensor] | None = None
) -> float | None:
    """The metric of the best answer that looks at no input, see `CONSTANTS`.

    Args:
        metric: the metric.
        labels: (K, ...) as the metric takes them, of the rows that a model is judged on.
        frequencies: gives int64 (C,), how often each class is a label of the training rows; of
            perplexity alone. Each counts once more, so that an unseen one has a chance.
    Returns: None where the metric takes something else, or cannot be had of a constant.
    """
    if not len(labels):
        return None
    if metric.constant is not None:
        return metric.constant(labels)
    if metric.predict is surprise:
        if frequencies is None:
            return None
        counts = (frequencies() + 1).double()
        answers = (counts.sum() / counts).log()[labels]
    elif metric.predict in CONSTANTS:
        answers = CONSTANTS[metric.predict].answer(labels)
    else:
        return None
    try:
        return metric.score(answers, labels)
    except Exception:  # of a user's function: it may refuse draws or answers of one class
        return None


def counted(labels: Tensor | list[Tensor]) -> Tensor:
    """Labels of rows or tokens, without those that do not count: (K,)."""
    rows = [labels] if isinstance(labels, Tensor) else labels
    flat = torch.cat([row.flatten() for row in rows])
    return flat[flat != IGNORED]
