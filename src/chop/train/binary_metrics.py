"""Binary, multilabel and ranking metrics of scikit-learn.

Shapes: N rows, L labels per row, C classes. Labels and predictions are 0 and 1.
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
"""Names of metrics that take confidences. All others take decisions."""


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
    """Returns the area under the ROC curve.

    Binary labels (N,) give one area. Multilabel labels (N, L) give the mean over the labels. Class
    labels (N,) with confidences (N, C) give the mean over all pairs of a class and the other
    classes.

    Raises:
        ConfigError: if a class has no row, so its curve is undefined.
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
    """Returns the area under the precision-recall curve, (N,), or its mean over labels (N, L).

    Raises:
        ConfigError: if a label has no positive row.
    """
    from sklearn.metrics import average_precision_score

    _check_both_occur(labels, "average_precision")
    if bool(confidences.isnan().any()):
        return math.nan
    return float(
        average_precision_score(labels.cpu().numpy(), _numbers(confidences), average="macro")
    )


def _numbers(confidences: Tensor) -> Any:
    """Converts confidences to a finite array for scikit-learn that has the same order."""
    return confidences.double().nan_to_num().cpu().numpy()


def _check_both_occur(labels: Tensor, name: str) -> None:
    share = labels.double().reshape(len(labels), -1).mean(0)
    if bool(((share == 0) | (share == 1)).any()):
        raise ConfigError(f"metric '{name}': a class has no rows, or has them all; add rows.")


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
"""Metrics of binary tasks, for class 1. Accuracy is in `chop.train.metrics`."""
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
"""Metrics of multilabel tasks, averaged over the labels.

`accuracy` is the share of rows with all answers right, `hamming_loss` that of single wrong answers.
"""
CLASS_METRICS: dict[str, Score] = {
    "balanced_accuracy": _decision_score("balanced_accuracy_score"),
    "roc_auc": roc_auc,
}
"""Metrics of classification beyond those of `chop.train.metrics`."""
