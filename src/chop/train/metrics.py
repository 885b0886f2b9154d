"""Classification metrics that need no network. N rows, C classes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from chop.errors import ConfigError, did_you_mean


def accuracy(predictions: Tensor, labels: Tensor) -> float:
    """The share of rows that are right: #(prediction = label) / N.

    >>> accuracy(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 0, 1]))
    0.75
    """
    return (predictions == labels).double().mean().item()


def _per_class(predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """True positives, predicted and actual counts, of each class that occurs in either."""
    classes = torch.cat([predictions, labels]).unique()
    is_predicted = predictions == classes[:, None]
    is_actual = labels == classes[:, None]
    hits = (is_predicted & is_actual).sum(1).double()
    return hits, is_predicted.sum(1).double(), is_actual.sum(1).double()


def precision(predictions: Tensor, labels: Tensor) -> float:
    """Mean over the classes of TP / (TP + FP); 0 for a class that is never predicted.

    >>> precision(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 0, 1]))
    0.8333333333333333
    """
    hits, predicted, _ = _per_class(predictions, labels)
    return (hits / predicted.clamp(min=1)).mean().item()


def recall(predictions: Tensor, labels: Tensor) -> float:
    """Mean over the classes of TP / (TP + FN); 0 for a class that does not occur.

    >>> recall(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 0, 1]))
    0.75
    """
    hits, _, actual = _per_class(predictions, labels)
    return (hits / actual.clamp(min=1)).mean().item()


def f1(predictions: Tensor, labels: Tensor) -> float:
    """Mean over the classes of 2 TP / (2 TP + FP + FN), the macro average.

    >>> f1(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 0, 1]))
    0.7333333333333334
    """
    hits, predicted, actual = _per_class(predictions, labels)
    return (2 * hits / (predicted + actual)).mean().item()


def matthews_correlation(predictions: Tensor, labels: Tensor) -> float:
    """The correlation of predicted and actual class, -1 to 1; 0 where either is constant.

    (c N - sum p_k t_k) / sqrt((N^2 - sum p_k^2) (N^2 - sum t_k^2)), with c right rows, p_k
    rows predicted and t_k rows actually in class k (Gorodkin 2004).

    >>> round(matthews_correlation(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 0, 1])), 4)
    0.5774
    """
    hits, predicted, actual = _per_class(predictions, labels)
    n = len(labels)
    spread = (n**2 - (predicted**2).sum()) * (n**2 - (actual**2).sum())
    above = hits.sum() * n - (predicted * actual).sum()
    return (above / spread.sqrt()).item() if spread > 0 else 0.0


METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {
    function.__name__: function
    for function in (accuracy, precision, recall, f1, matthews_correlation)
}


def find_metric(name: str) -> Callable[[Tensor, Tensor], float]:
    """The function `(predictions (N,), labels (N,)) -> float` of that name.

    Raises:
        ConfigError: there is none; the message names the nearest.
    """
    if name not in METRICS:
        raise ConfigError(f"unknown metric '{name}': {did_you_mean(name, METRICS)}")
    return METRICS[name]
