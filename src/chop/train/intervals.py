"""Confidence of a metric: 95 % intervals, and the score of a constant answer.

Shapes: K compared answers.
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
"""Settings of the bootstrap, see `draws_for`."""
FEW_ROWS = 100
"""Row count below which intervals are wider than the differences between most formats."""


@dataclass(frozen=True)
class Score:
    """Score of a model on some rows, with its confidence interval.

    Attributes:
        value: the metric.
        interval: at the level `LEVEL`; None if unknown.
        constant: score of the best constant answer, see `constant_score`; None if unknown.
        rows: number of rows, each with one or (in texts) several answers; 0 if a user function
            returns only one number.
        has_one_class: true if all labels are the same class.
        parts: scores of several outputs by name.
        useless: entries of `parts` that do not beat a constant answer, with the constant's score.
    """

    value: float
    interval: Interval | None
    constant: float | None
    rows: int
    has_one_class: bool = False
    parts: Mapping[str, float] = field(default_factory=dict)
    useless: Mapping[str, float] = field(default_factory=dict)

    def format(self, metric: Metric) -> str:
        """Formats the value with its interval for a sentence."""
        return f"{metric.format_value(self.value)}{format_interval(self.interval, metric)}"

    def format_cell(self, metric: Metric) -> str:
        """Formats the value with its interval for a table."""
        return format_cell(self.value, self.interval, metric)


def format_interval(interval: Interval | None, metric: Metric) -> str:
    """Formats the interval in brackets to follow a value; "" without an interval."""
    if interval is None:
        return ""
    low, high = map(metric.format_value, interval)
    return f" ({LEVEL_TEXT} interval {low} to {high})"


def format_cell(value: float, interval: Interval | None, metric: Metric) -> str:
    """Formats a value with its interval for a table whose header explains the brackets.

    >>> from chop.train.tasks import CLASSIFICATION
    >>> format_cell(0.9, (0.5958, 0.9821), CLASSIFICATION.metric)
    '90.00% (59.6 to 98.2)'
    """
    if interval is None:
        return metric.format_value(value)
    low, high = (f"{100 * end:.1f}" if metric.is_share else f"{end:.4g}" for end in interval)
    return f"{metric.format_value(value)} ({low} to {high})"


def interval_note(metric: Metric) -> str:
    """Returns the note below a table that names the method of its intervals."""
    kind = "Wilson score" if metric.score is metrics.accuracy else "bootstrap"
    return f"The intervals are {LEVEL_TEXT} {kind} intervals."


def compute_interval(
    metric: Metric, predictions: Tensor, labels: Tensor, sizes: list[int] | None = None
) -> Interval | None:
    """Computes the confidence interval of a metric: Wilson for accuracy, bootstrap otherwise.

    Args:
        metric: the metric.
        predictions: (K, ...), in the form that the metric takes.
        labels: (K, ...).
        sizes: number of answers per row. If rows have several answers, whole rows are drawn, see
            `interval_over_rows`. None takes answers as independent, including tokens of one text.
    Returns: None if the metric of a draw is not a number.
    """
    has_several = sizes is not None and set(sizes) != {1}
    if metric.score is metrics.accuracy and not has_several:
        return wilson(int((predictions == labels).sum()), len(labels))
    try:
        if sizes is not None and has_several:
            return interval_over_rows(lambda i: metric.score(predictions[i], labels[i]), sizes)
        count = len(labels)
        ends = bootstrap(lambda i: metric.score(predictions[i], labels[i]), count, draws_for(count))
    except Exception:  # of a user's function: it may fail on draws or answers of one class
        return None
    return None if any(map(math.isnan, ends)) else ends


def interval_over_rows(
    statistic: Callable[[Tensor], float], sizes: list[int], draws: int | None = None
) -> Interval | None:
    """Returns the bootstrap interval over rows; answers of a row depend on each other.

    Args:
        statistic: function of int64 indices of answers.
        sizes: number of answers per row.
        draws: number of resamples. Default: see `draws_for`.
    Returns: None with fewer than two rows, or if the statistic of a draw is not a number.
    """
    places = [x for x in torch.arange(sum(sizes)).split(sizes) if len(x)]
    if len(places) < 2:
        return None
    is_one_each = len(places) == sum(sizes)
    ends = bootstrap(
        lambda drawn: statistic(drawn if is_one_each else torch.cat([places[i] for i in drawn])),
        len(places),
        draws_for(sum(sizes)) if draws is None else draws,
    )
    return None if any(map(math.isnan, ends)) else ends


def draws_for(answers: int) -> int:
    """Returns the number of bootstrap draws; fewer for many answers, whose metric varies less."""
    return max(LEAST_DRAWS, min(METRIC_DRAWS, DRAWN_ANSWERS // max(answers, 1)))


def constant_score(
    metric: Metric, labels: Tensor, frequencies: Callable[[], Tensor] | None = None
) -> float | None:
    """Computes the metric of the best constant answer, see `CONSTANTS`.

    Args:
        metric: the metric.
        labels: (K, ...) of the evaluated rows, in the form that the metric takes.
        frequencies: returns int64 (C,), label counts of the training rows; used by perplexity. Each
            count is raised by one, which gives unseen classes a probability above 0.
    Returns: None if the metric has no constant answer or is undefined for it.
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
    except Exception:  # of a user's function: it may fail on draws or answers of one class
        return None


def counted(labels: Tensor | list[Tensor]) -> Tensor:
    """Returns the labels of rows or tokens that count: (K,)."""
    rows = [labels] if isinstance(labels, Tensor) else labels
    flat = torch.cat([row.flatten() for row in rows])
    return flat[flat != IGNORED]
