"""Metrics that work offline. N rows, C classes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from chop.errors import ConfigError, check_known, describe

Score = Callable[[Any, Any], float]


def _checked(score: Callable[[Tensor, Tensor], float]) -> Score:
    """Decorator of a metric, which then also takes arrays and lists.

    Raises:
        ConfigError: in a call, if there are no rows, or predictions and labels do not match.
    """
    takes_numbers = score.__name__ in ("r2", "pearson", "mse", "mae")

    @functools.wraps(score)
    def checked(predictions: Any, labels: Any) -> float:
        p, t = (_tensor(score.__name__, x) for x in (predictions, labels))
        p = p.flatten() if p.shape[1:] == (1,) else p
        t = t.reshape(p.shape) if p.numel() == t.numel() and len(p) == len(t) else t
        if p.shape != t.shape or not p.numel() or (p.dim() > 1 and not takes_numbers):
            hint = "" if takes_numbers or p.dim() < 2 else "; logits.argmax(-1) gives classes"
            raise ConfigError(
                f"metric '{score.__name__}': expected predictions and labels of the same rows, at "
                f"least one, got shapes {tuple(p.shape)} and {tuple(t.shape)}{hint}."
            )
        if not takes_numbers and p.is_floating_point() and bool((p != p.round()).any()):
            raise ConfigError(
                f"metric '{score.__name__}': expected predicted classes, got numbers with "
                "fractions; use probabilities > 0.5, or logits.argmax(-1)."
            )
        return score(p, t)

    return checked


def _tensor(name: str, values: Any) -> Tensor:
    try:
        tensor = torch.as_tensor(values)
        len(tensor)
    except (TypeError, ValueError, RuntimeError):  # texts, lists of several lengths, one number
        raise ConfigError(
            f"metric '{name}': expected arrays with a number for each row, got {describe(values)}."
        ) from None
    return tensor


@_checked
def accuracy(predictions: Tensor, labels: Tensor) -> float:
    """Returns the share of correct rows: #(prediction = label) / N.

    >>> accuracy(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 0, 1]))
    0.75
    """
    return (predictions == labels).double().mean().item()


def _per_class(predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns true positives, predicted and actual counts of each class that occurs."""
    classes = torch.cat([predictions, labels]).unique()
    is_predicted = predictions == classes[:, None]
    is_actual = labels == classes[:, None]
    hits = (is_predicted & is_actual).sum(1).double()
    return hits, is_predicted.sum(1).double(), is_actual.sum(1).double()


@_checked
def precision(predictions: Tensor, labels: Tensor) -> float:
    """Returns the mean over classes of TP / (TP + FP); 0 for a class without predictions.

    >>> precision(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 0, 1]))
    0.8333333333333333
    """
    hits, predicted, _ = _per_class(predictions, labels)
    return (hits / predicted.clamp(min=1)).mean().item()


@_checked
def recall(predictions: Tensor, labels: Tensor) -> float:
    """Returns the mean over classes of TP / (TP + FN); 0 for a class without labels.

    >>> recall(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 0, 1]))
    0.75
    """
    hits, _, actual = _per_class(predictions, labels)
    return (hits / actual.clamp(min=1)).mean().item()


@_checked
def f1(predictions: Tensor, labels: Tensor) -> float:
    """Returns the macro average over classes of 2 TP / (2 TP + FP + FN).

    >>> f1(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 0, 1]))
    0.7333333333333334
    """
    hits, predicted, actual = _per_class(predictions, labels)
    return (2 * hits / (predicted + actual)).mean().item()


@_checked
def matthews_correlation(predictions: Tensor, labels: Tensor) -> float:
    """Returns the correlation of predicted and actual class, -1 to 1; 0 if either is constant.

    (c N - sum p_k t_k) / sqrt((N^2 - sum p_k^2) (N^2 - sum t_k^2)), with c correct rows, p_k rows
    predicted and t_k rows actually in class k (Gorodkin 2004).

    >>> round(matthews_correlation(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 0, 1])), 4)
    0.5774
    """
    hits, predicted, actual = _per_class(predictions, labels)
    n = len(labels)
    spread = (n**2 - (predicted**2).sum()) * (n**2 - (actual**2).sum())
    above = hits.sum() * n - (predicted * actual).sum()
    return (above / spread.sqrt()).item() if spread > 0 else 0.0


METRICS: dict[str, Score] = {
    function.__name__: function
    for function in (accuracy, precision, recall, f1, matthews_correlation)
}


@_checked
def r2(predictions: Tensor, labels: Tensor) -> float:
    """Returns the explained share of the variance: 1 - sum (p - t)^2 / sum (t - mean)^2.

    Averages over outputs. 1 is perfect, 0 is as good as always answering the mean. If all labels
    are equal, the result is 1 for exact predictions, otherwise 0.

    >>> r2(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 2.0, 3.0]))
    0.5
    """
    p, t = _by_output(predictions), _by_output(labels)
    missed, spread = (p - t).square().sum(0), (t - t.mean(0)).square().sum(0)
    constant = (missed == 0).double()
    return torch.where(spread > 0, 1 - missed / spread, constant).mean().item()


@_checked
def pearson(predictions: Tensor, labels: Tensor) -> float:
    """Returns Pearson's correlation, -1 to 1, averaged over outputs; 0 if either side is constant.

    >>> round(pearson(torch.tensor([2.0, 4.0, 6.0]), torch.tensor([1.0, 2.0, 3.0])), 6)
    1.0
    """
    p, t = (x - x.mean(0) for x in (_by_output(predictions), _by_output(labels)))
    spread = (p.square().sum(0) * t.square().sum(0)).sqrt()
    return torch.where(spread == 0, 0.0, (p * t).sum(0) / spread).mean().item()


@_checked
def mse(predictions: Tensor, labels: Tensor) -> float:
    """Returns the mean squared error.

    >>> mse(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]))
    2.0
    """
    return (predictions.double() - labels.double()).square().mean().item()


@_checked
def mae(predictions: Tensor, labels: Tensor) -> float:
    """Returns the mean absolute error.

    >>> mae(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]))
    1.0
    """
    return (predictions.double() - labels.double()).abs().mean().item()


def _by_output(numbers: Tensor) -> Tensor:
    return numbers.double().reshape(len(numbers), -1)


def perplexity(surprise: Tensor, labels: Tensor) -> float:
    """Returns exp of the mean cross entropy per token, in nats.

    >>> round(perplexity(torch.tensor([2.0, 4.0]).log(), torch.zeros(2)), 4)
    2.8284
    """
    return surprise.double().mean().exp().item()


REGRESSION_METRICS: dict[str, Score] = {
    function.__name__: function for function in (r2, pearson, mse, mae)
}


def find_metric(name: str) -> Score:
    """Returns the metric function `(predictions (N,), labels (N,)) -> float` with the given name.

    Raises:
        ConfigError: if the name is unknown; the message suggests the nearest.
    """
    check_known(name, METRICS, "unknown metric")
    return METRICS[name]
