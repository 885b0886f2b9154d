"""Binary, multilabel and ranking metrics of scikit-learn.

Shapes: N rows, L labels of a row, C classes. Labels and predictions are 0 and 1.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor

from chop.errors import ConfigError

Score = Callable[[Tensor, Tensor], float]
RANKING = ("roc_auc", "average_precision")
"""Names of metrics of confidences; all others are of decisions."""


def _decision_score(name: str, **settings: Any) -> Score:
    """Wraps a function of `sklearn.metrics` as (predictions, labels) -> float."""

    def score(predictions: Tensor, labels: Tensor) -> float:
        from sklearn import metrics

        with warnings.catch_warnings():  # of a class that does not occur, whose number is 0
            warnings.simplefilter("ignore", UserWarning)
            value = getattr(metrics, name)(
                labels.cpu().numpy(), predictions.cpu().numpy(), **settings
            )
        return float(value)

    return score


def roc_auc(confidences: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve: of yes and no (N,), the mean over labels (N, L), or over the pairs
    of a class and the others where labels (N,) are classes of confidences (N, C).

    Raises:
        ConfigError: a class does not occur, for which there is no curve.
    """
    from sklearn.metrics import roc_auc_score

    if confidences.dim() == 2 and labels.dim() == 1:
        if confidences.shape[1] == 2:
            confidences = confidences[:, 1] - confidences[:, 0]
        else:
            labels = (labels[:, None] == labels.new_tensor(range(confidences.shape[1]))).long()
    _check_both_occur(labels, "roc_auc")
    if bool(confidences.isnan().any()):
        return math.nan
    return float(roc_auc_score(labels.cpu().numpy(), _numbers(confidences), average="macro"))


def average_precision(confidences: Tensor, labels: Tensor) -> float:
    """Area under the curve of precision by recall, (N,), or its mean over labels (N, L).

    Raises:
        ConfigError: a label does not occur.
    """
    from sklearn.metrics import average_precision_score

    _check_both_occur(labels, "average_precision")
    if bool(confidences.isnan().any()):
        return math.nan
    return float(
        average_precision_score(labels.cpu().numpy(), _numbers(confidences), average="macro")
    )


def _numbers(confidences: Tensor) -> Any:
    """Converts to an array of finite numbers for scikit-learn, in the same order."""
    return confidences.double().nan_to_num().cpu().numpy()


def _check_both_occur(labels: Tensor, name: str) -> None:
    share = labels.double().reshape(len(labels), -1).mean(0)
    if bool(((share == 0) | (share == 1)).any()):
        raise ConfigError(f"metric '{name}': some class has no row or every row: give more.")


_BINARY: dict[str, Any] = {"zero_division": 0}
_BY_LABEL: dict[str, Any] = {"average": "macro", "zero_division": 0}
BINARY_METRICS: dict[str, Score] = {
    "balanced_accuracy": _decision_score("balanced_accuracy_score"),
    "f1": _decision_score("f1_score", **_BINARY),
    "precision": _decision_score("precision_score", **_BINARY),
    "recall": _decision_score("recall_score", **_BINARY),
    "matthews_correlation": _decision_score("matthews_corrcoef"),
    "roc_auc": roc_auc,
    "average_precision": average_precision,
}
"""Metrics for one yes-or-no answer a row, about class 1. Accuracy is in `chop.train.metrics`."""
MULTILABEL_METRICS: dict[str, Score] = {
    "f1": _decision_score("f1_score", **_BY_LABEL),
    "f1_micro": _decision_score("f1_score", average="micro", zero_division=0),
    "precision": _decision_score("precision_score", **_BY_LABEL),
    "recall": _decision_score("recall_score", **_BY_LABEL),
    "accuracy": _decision_score("accuracy_score"),
    "hamming_loss": _decision_score("hamming_loss"),
    "roc_auc": roc_auc,
    "average_precision": average_precision,
}
"""Metrics for several answers a row, averaged over the labels.

Accuracy counts rows whose answers are all right, hamming_loss single wrong answers.
"""
CLASS_METRICS: dict[str, Score] = {
    "balanced_accuracy": _decision_score("balanced_accuracy_score"),
    "roc_auc": roc_auc,
}
"""Metrics for classes, in addition to those of `chop.train.metrics`."""
