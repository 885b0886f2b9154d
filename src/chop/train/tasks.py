"""Built-in tasks, and inference of a task from labels.

Shapes: B rows, T tokens, C classes, K compared answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Never

import torch.nn.functional as F
from torch import Tensor

from chop.base.notices import assume, get_logger
from chop.errors import ConfigError, check_known, describe
from chop.train.binary_metrics import (
    BINARY_METRICS,
    CLASS_METRICS,
    MULTILABEL_METRICS,
    RANKING,
)
from chop.train.distillation.soft_losses import binary_divergence, squared_difference
from chop.train.metric import Metric, classes, confidences, positives, surprise, values
from chop.train.metrics import METRICS, REGRESSION_METRICS, perplexity
from chop.train.outputs import find_outputs_task, outputs_task
from chop.train.segmentation import SEGMENTATION, SEGMENTATION_TASK, are_masks
from chop.train.task import (
    IGNORED,
    JUDGED,
    LEAVE_OUT,
    SIGNS,
    SOFT,
    TASKS,
    Labels,
    Pair,
    Task,
    are_one_hot,
    are_probabilities,
    check_task_name,
    has_one_class,
    one_class,
    unfit,
)

__all__ = [
    "IGNORED",
    "JUDGED",
    "LEAVE_OUT",
    "TASKS",
    "Task",
]


log = get_logger(__name__)


def _one_class_each(logits: Tensor, labels: Tensor) -> Pair:
    if logits.dim() == labels.dim() == 1 and not logits.is_floating_point():
        raise ConfigError(
            "task 'classification': the model returns class numbers, as argmax does. Return the "
            "scores of the classes (logits), (B, C), instead."
        )
    if logits.dim() != 2 or labels.dim() != 1 or len(logits) != len(labels):
        raise unfit("classification", "(B, C) and labels of (B,)", logits, labels)
    return _counted(logits, labels, labels != IGNORED)


def _counted(logits: Tensor, labels: Tensor, counts: Tensor) -> Pair:
    if counts.all():  # mostly a view, where an index makes a copy
        return logits.flatten(0, counts.dim() - 1), labels.flatten().long()
    return logits[counts], labels[counts].long()


def _numbers(logits: Tensor, labels: Tensor) -> Pair:
    one = logits.squeeze(-1) if logits.dim() == labels.dim() + 1 else logits
    wanted = labels.squeeze(-1) if labels.dim() == one.dim() + 1 else labels
    if one.shape != wanted.shape:
        raise unfit("regression", "the shape of the labels", logits, labels)
    return one, wanted.to(one.dtype)


def _one_class_per_token(logits: Tensor, labels: Tensor) -> Pair:
    if logits.dim() != 3 or logits.shape[:2] != labels.shape:
        raise unfit("token-classification", "(B, T, C) and labels of (B, T)", logits, labels)
    return _counted(logits, labels, labels != IGNORED)


def _next_token(logits: Tensor, labels: Tensor) -> Pair:
    if logits.dim() != 3 or logits.shape[:2] != labels.shape:
        raise unfit(CAUSAL_LM, "(B, T, C) and labels of (B, T)", logits, labels)
    return _one_class_per_token(logits[:, :-1], labels[:, 1:])


def _yes_or_no(logits: Tensor, labels: Tensor) -> Pair:
    if logits.dim() == 2 and logits.shape[1] == 2:  # the softmax of two is a sigmoid of one
        logits = logits[:, 1] - logits[:, 0]
    one = logits.squeeze(-1) if logits.dim() == 2 else logits
    wanted = labels.squeeze(-1) if labels.dim() == 2 else labels
    if one.dim() != 1 or one.shape != wanted.shape:
        raise unfit(BINARY, "(B,), (B, 1) or (B, 2) and labels of (B,)", logits, labels)
    _check_zero_or_one(BINARY, wanted)
    counts = wanted != IGNORED
    return one[counts], wanted[counts].long()


def _labels_each(logits: Tensor, labels: Tensor) -> Pair:
    if logits.dim() != 2 or logits.shape != labels.shape:
        wanted = "(B, L) and labels of (B, L), 0 or 1 for each of L classes"
        raise unfit(MULTILABEL, wanted, logits, labels)
    _check_zero_or_one(MULTILABEL, labels)
    counts = (labels != IGNORED).all(1)
    return logits[counts], labels[counts].long()


def _check_zero_or_one(task: str, labels: Tensor) -> None:
    if set(labels.unique().tolist()) == {-1, 1}:
        raise ConfigError(f"task '{task}': {SIGNS}")
    wrong = labels[(labels != 0) & (labels != 1) & (labels != IGNORED)]
    if len(wrong):
        raise ConfigError(
            f"task '{task}': got the label {wrong[0].item():g}, expected 0 or 1, or {IGNORED} for "
            "rows that do not count."
        )


def _are_classes(logits: Tensor, labels: Tensor) -> bool:
    """Returns true if labels (B,) number the classes of logits (B, C)."""
    if logits.dim() != 2 or labels.dim() != 1 or not len(labels):
        return False
    is_whole = bool((labels == labels.round()).all())
    return is_whole and 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[1]


def _are_zero_or_one(labels: Tensor) -> bool:
    return bool(((labels == 0) | (labels == 1) | (labels == IGNORED)).all())


def cross_entropy(answers: Tensor, labels: Tensor) -> Tensor:
    """Returns the mean cross entropy in nats, (K, C) and (K,), in the dtype of the answers; 0 if
    empty.
    """
    if not len(labels):  # a batch of ignored rows: the mean of none, NaN, would become the weights
        return answers.sum()
    return F.cross_entropy(answers, labels)


def _binary_cross_entropy(answers: Tensor, labels: Tensor) -> Tensor:
    """Returns the mean binary cross entropy in nats, in the dtype of the answers; 0 if empty."""
    if not len(labels):
        return answers.sum()
    return F.binary_cross_entropy_with_logits(answers, labels.to(answers.dtype))


def _binary_metrics(scores: Mapping[str, Callable[[Tensor, Tensor], float]]) -> dict[str, Metric]:
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


_CLASS_METRICS = {
    name: Metric(name, score, classes, is_share=name != "matthews_correlation")
    for name, score in METRICS.items()
}
_ROW_METRICS = {
    **_CLASS_METRICS,
    "balanced_accuracy": Metric(
        "balanced_accuracy", CLASS_METRICS["balanced_accuracy"], classes, is_share=True
    ),
    "roc_auc": Metric("roc_auc", CLASS_METRICS["roc_auc"], confidences),
}
_BINARY_METRICS = _binary_metrics({"accuracy": METRICS["accuracy"], **BINARY_METRICS})
_MULTILABEL_METRICS = _binary_metrics(MULTILABEL_METRICS)
_TOKEN_METRICS = {
    **_CLASS_METRICS,
    "perplexity": Metric("perplexity", perplexity, surprise, higher_is_better=False),
}
_REGRESSION_METRICS = {
    name: Metric(name, score, values, higher_is_better=name not in ("mse", "mae"))
    for name, score in REGRESSION_METRICS.items()
}


def _over_classes(
    name: str,
    metric: str,
    compare: Callable[[Tensor, Tensor], Pair],
    metrics: Mapping[str, Metric] = _TOKEN_METRICS,
    **further: Any,
) -> Task:
    return Task(
        name,
        metrics[metric],
        cross_entropy,
        compare,
        is_categorical=True,
        takes_model_loss=True,
        is_one_class=one_class,
        metrics=metrics,
        **further,
    )


def _numbered_classes(labels: Labels) -> int:
    """Returns the largest label plus one."""
    return max(int(row.max()) for row in labels if row.numel()) + 1


def _numbers_of_a_row(labels: Labels) -> int:
    return max(1, labels[0].numel())


CAUSAL_LM = "causal-lm"
"""Task of models that continue texts."""
BINARY, MULTILABEL = "binary", "multilabel"
"""Tasks with one and with several binary answers per row."""
_ROWS = (
    _over_classes(
        "classification",
        "accuracy",
        _one_class_each,
        _ROW_METRICS,
        fits=lambda x, y: (x.shape == y.shape and are_one_hot(y)) or _are_classes(x, y),
        heads=_numbered_classes,
        takes_names=True,
        summary="one class per row",
    ),
    Task(
        BINARY,
        _BINARY_METRICS["accuracy"],
        _binary_cross_entropy,
        _yes_or_no,
        fits=lambda x, y: x.shape[1:] in ((), (1,)) and y.dim() == 1 and _are_zero_or_one(y),
        is_one_class=one_class,
        heads=lambda labels: 1,
        takes_names=True,
        metrics=_BINARY_METRICS,
        soft_loss=binary_divergence,
        summary="one yes-or-no answer per row",
    ),
    Task(
        MULTILABEL,
        _MULTILABEL_METRICS["f1"],
        _binary_cross_entropy,
        _labels_each,
        fits=lambda x, y: x.dim() == 2 and x.shape[1:] == y.shape[1:] and _are_zero_or_one(y),
        heads=_numbers_of_a_row,
        metrics=_MULTILABEL_METRICS,
        soft_loss=binary_divergence,
        summary="several yes-or-no answers per row",
    ),
    Task(
        "regression",
        _REGRESSION_METRICS["r2"],
        F.mse_loss,
        _numbers,
        fits=lambda x, y: x.shape[1:] in ((), (1,), y.shape[1:]),
        heads=_numbers_of_a_row,
        metrics=_REGRESSION_METRICS,
        soft_loss=squared_difference,
        summary="numbers",
    ),
    _over_classes(
        "token-classification",
        "accuracy",
        _one_class_per_token,
        heads=_numbered_classes,
        auto_task="token-classification",
        summary="one class per token",
        inferred_note=(
            "Labels have a class per token or position of a row: task token-classification. "
            "If the items are batches of rows, pass a DataLoader."
        ),
    ),
    _over_classes(
        CAUSAL_LM,
        "perplexity",
        _next_token,
        labels_from="input_ids",
        auto_task="text-generation",
        summary="next token of a text, measured by perplexity",
    ),
    SEGMENTATION_TASK,
    outputs_task({}),
)
TASKS.declare({row.name: row for row in _ROWS})
CLASSIFICATION = _ROWS[0]


def known_metrics() -> dict[str, Metric]:
    """Returns the metrics of all tasks by name."""
    TASKS.import_all()
    return imported_metrics()


def imported_metrics() -> dict[str, Metric]:
    """Returns the metrics of built-in tasks and of packages that are already imported, by name."""
    tasks = TASKS.imported_rows().values()
    return {m.name: m for task in tasks for m in (task.metric, *task.metrics.values())}


def share_metrics() -> set[str]:
    """Returns the names of metrics whose values are shares of 1."""
    return {name for name, metric in known_metrics().items() if metric.is_share}


def _no_loss(answers: Tensor, labels: Tensor) -> Never:
    raise ConfigError(
        "the model is evaluated by your function, so its training loss is unknown; pass --loss "
        "file.py:fn or --task."
    )


def _no_metric(predictions: Tensor, labels: Tensor) -> Never:
    raise ConfigError("the model is evaluated by your function and has no metric of rows.")


JUDGED_TASK = Task(
    JUDGED, Metric("untold", _no_metric), _no_loss, reads_all=True, soft_loss=squared_difference
)


def find_task(task: str | Task | Mapping[str, str | Task]) -> Task:
    """Returns a task by name, or builds the multi-output task of a mapping.

    Raises:
        ConfigError: if the name is unknown; the message suggests the nearest.
    """
    if isinstance(task, Task):
        return task
    if not isinstance(task, str | Mapping):
        raise ConfigError(
            f"task: expected a name, a Task, or a mapping of tasks by output, got {describe(task)}."
        )
    if not isinstance(task, str) or "=" in task:
        return find_outputs_task(task)
    check_task_name(task, "unknown task")
    return TASKS[task]


def check_metric_name(name: str, task: str | None = None) -> None:
    """Checks that a task has a metric of that name.

    Args:
        name: name of the metric.
        task: the given task; multi-output tasks have their own metrics, such as `age_r2`.
    Raises:
        ConfigError: if the name is unknown; the message suggests the nearest.
    """
    further = {} if task is None else find_task(task).metrics
    check_known(name, {*known_metrics(), *further}, "unknown metric")


def infer_task(columns: Mapping[str, Tensor | list[Tensor]], labels: Tensor | list[Tensor]) -> Task:
    """Infers the task from labels.

    Numbers with fractions are regression, and one class per row is classification. A label per
    token is token classification, or causal language modeling if the labels are the tokens. A class
    per pixel is segmentation.
    """
    if isinstance(labels, Tensor) and labels.dim() < 2:
        return TASKS["regression" if labels.is_floating_point() else "classification"]
    first = labels[0]
    if first.is_floating_point():
        return TASKS["regression"]
    if are_masks(labels):
        return SEGMENTATION_TASK
    ids = columns.get("input_ids")
    is_language = ids is not None and _are_same(ids, labels)
    return TASKS[CAUSAL_LM if is_language else "token-classification"]


def check_is_clear(task: Task, labels: Tensor | list[Tensor], *, is_of_rows: bool = True) -> None:
    """Checks that labels do not also suggest another task than the inferred one.

    Records an assumption if numbers are only -1 and 1, which may be classes.

    Args:
        task: the inferred task.
        labels: labels of all rows.
        is_of_rows: true if no input has as many positions as a row has labels.
    Raises:
        ConfigError: if the labels are one-hot, probabilities of classes, or several numbers per row
            or images of only 0 and 1, which are rarely a regression.
    """
    if not isinstance(labels, Tensor):
        return
    if task.name == "regression" and {*labels.flatten().tolist()} == {-1, 1}:
        assume(
            "The labels are -1 and 1, and are read as numbers, by task regression. For classes, "
            f"pass (labels + 1) // 2; for one logit, also --task {BINARY}.",
            log,
        )
    if labels.dim() < 2:
        return
    if is_of_rows and are_one_hot(labels):
        raise ConfigError(
            f"labels: got {labels.shape[1]} numbers a row, 0 but for one 1: --task "
            f"{CLASSIFICATION.name} treats them as one class, --task {MULTILABEL} as yes-or-no "
            "answers, --task regression as numbers."
        )
    if task.name != "regression":
        return
    if are_masks(labels) and _are_zero_or_one(labels):
        raise ConfigError(
            f"labels: got images {tuple(labels.shape[1:])} of numbers, all 0 or 1: --task "
            f"{SEGMENTATION} treats them as a class per pixel, --task regression as numbers."
        )
    if are_probabilities(labels):
        raise ConfigError(
            f"labels: got {labels.shape[1]} numbers a row that sum to 1, as probabilities of "
            f"classes do; {SOFT} --task regression treats them as numbers."
        )
    if labels.dim() > 2 and has_one_class(labels):
        raise ConfigError(
            "labels: got numbers that are one-hot along dimension 1. For classes, pass "
            "labels.argmax(1); --task regression treats them as numbers."
        )
    if labels.shape[1] > 1 and _are_zero_or_one(labels):
        raise ConfigError(
            f"labels: got {labels.shape[1]} numbers a row, all 0 or 1: --task {MULTILABEL} treats "
            "them as yes-or-no answers, --task regression as numbers."
        )


def check_is_not_shifted(ids: Tensor | list[Tensor] | None, labels: Tensor | list[Tensor]) -> None:
    """Checks that the labels of tokens are not the next tokens, which the loss would shift again.

    Args:
        ids: tokens of all rows; None if the model reads none.
        labels: labels of all rows.
    Raises:
        ConfigError: if they are the next tokens in all rows.
    """
    if ids is None or not len(labels) or labels[0].dim() != 1 or ids[0].shape != labels[0].shape:
        return
    earlier = [label[:-1] for label in labels]
    are_shifted = _are_same([row[1:] for row in ids], earlier) and not _are_same(ids, labels)
    if are_shifted and any(bool((label != IGNORED).any()) for label in earlier):
        raise ConfigError(
            "labels: they are input_ids shifted by one position, and the loss of task "
            f"'{CAUSAL_LM}' shifts them itself: pass labels=input_ids. For a model of your own "
            "whose outputs are compared without a shift, use --task token-classification."
        )


def _are_same(ids: Tensor | list[Tensor], labels: Tensor | list[Tensor]) -> bool:
    return all(
        row.shape == label.shape and bool(((row == label) | (label == IGNORED)).all())
        for row, label in zip(ids, labels, strict=True)
    )
