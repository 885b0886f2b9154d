"""Segmentation: pixel classification, evaluated by the overlap of predicted and labeled regions.

Shapes: B rows, C classes, H rows and W columns of pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from chop.data.masks import VOID
from chop.train.distillation.soft_losses import pixel_divergence
from chop.train.metric import COMMONEST, CONSTANTS, Constant, Metric
from chop.train.task import IGNORED, Labels, Pair, Task, beyond_classes, unfit

SEGMENTATION = "segmentation"
"""Name of the task."""


def are_masks(labels: Labels) -> bool:
    """Returns true if labels have a number per pixel: (B, H, W) or (B, 1, H, W)."""
    shape = labels[0].shape
    return len(shape) == 2 or (len(shape) == 3 and shape[0] == 1)


def _each_pixel(logits: Tensor, labels: Tensor) -> Pair:
    """Resizes logits to labels: (B, H, W, C) and (B, H, W), with `IGNORED` for uncounted pixels.

    Smaller logits are scaled bilinearly, as in transformers. A single logit belongs to class 1; the
    softmax of it and 0 equals its sigmoid.
    """
    masks = labels.squeeze(1) if labels.dim() == 4 else labels
    if logits.dim() == 3 and logits.shape == masks.shape:
        logits = logits.unsqueeze(1)
    if logits.dim() != 4 or masks.dim() != 3 or len(logits) != len(masks):
        raise unfit(SEGMENTATION, "(B, C, H, W) and labels of (B, H, W)", logits, labels)
    if logits.shape[2:] != masks.shape[1:]:
        logits = F.interpolate(logits, masks.shape[1:], mode="bilinear", align_corners=False)
    if logits.shape[1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], 1)
    count, masks = logits.shape[1], masks.long()
    if count <= VOID:
        masks = masks.masked_fill(masks == VOID, IGNORED)
    if masks.numel() and int(masks.max()) >= count:
        raise beyond_classes(SEGMENTATION_TASK, int(masks.max()), logits, labels)
    return logits.movedim(1, -1), masks


def _class_count(logits: Tensor) -> int:
    """Returns the number of classes of logits (B, C, H, W); a single logit has two classes."""
    return max(2, logits.shape[1] if logits.dim() == 4 else 1)


def _pixel_cross_entropy(answers: Tensor, labels: Tensor) -> Tensor:
    """Returns the mean cross entropy in nats of the counted pixels, in the dtype of the answers.

    The loss is 0 if no pixel counts, since NaN would spread to the weights.

    Args:
        answers: (B, H, W, C).
        labels: (B, H, W).
    """
    if bool((labels == IGNORED).all()):
        return answers.sum() * 0
    return F.cross_entropy(answers.movedim(-1, 1), labels, ignore_index=IGNORED)


def confusions(answers: Tensor, labels: Tensor) -> Tensor:
    """Counts pixels by class and predicted class for each image, int64 (B, C, C).

    Metrics over all pixels use their sum, and the bootstrap draws whole images.
    """
    count, rows = answers.shape[-1], len(answers)
    places = torch.arange(rows, device=labels.device)[:, None, None] * count
    cells = (places + labels) * count + answers.argmax(-1)
    counts = torch.bincount(cells[labels != IGNORED], minlength=rows * count * count)
    return counts.view(rows, count, count)


def _pixels_of_classes(predictions: Tensor, labels: Tensor) -> Tensor:
    """Counts pixels by class, int64 (B, C)."""
    return predictions.sum(-1)


def _commonest(counts: Tensor) -> Tensor:
    """Returns the confusions (B, C, C) of predicting the most common class for each pixel."""
    predicted = counts.new_zeros(*counts.shape, counts.shape[-1])
    predicted[..., int(counts.sum(0).argmax())] = counts
    return predicted


def _share(name: str, score: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Metric:
    """Builds a metric from a function of true positives, predicted and labeled pixels, float64 (C,)
    each.
    """

    def score_all(predictions: Tensor, expected: Tensor) -> float:
        total = predictions.sum(0).double()
        if not bool(total.any()):
            return math.nan
        return float(score(total.diagonal(), total.sum(0), total.sum(1)))

    return Metric(name, score_all, confusions, is_share=True, expect=_pixels_of_classes)


def _mean(values: Tensor, of: Tensor) -> Tensor:
    """Returns the mean of shares over the classes that occur."""
    return (values[of > 0] / of[of > 0]).mean()


CONSTANTS[confusions] = Constant(COMMONEST, _commonest)
METRICS = {
    metric.name: metric
    for metric in (
        _share("mean_iou", lambda hits, predicted, real: _mean(hits, predicted + real - hits)),
        _share("pixel_accuracy", lambda hits, predicted, real: hits.sum() / real.sum()),
        _share("balanced_accuracy", lambda hits, predicted, real: _mean(hits, real)),
        _share("f1", lambda hits, predicted, real: _mean(2 * hits, predicted + real)),
    )
}
"""Metrics of the counted pixels.

Jaccard (intersection over union), recall (balanced_accuracy) and F1 (Dice) are means over classes,
like scikit-learn's `average="macro"`.
"""
SEGMENTATION_TASK = Task(
    SEGMENTATION,
    METRICS["mean_iou"],
    _pixel_cross_entropy,
    _each_pixel,
    is_categorical=True,
    fits=lambda x, y: x.dim() == 4 and are_masks(y) and not bool((y != y.round()).any()),
    classes=_class_count,
    void=VOID,
    is_one_class=lambda counts: int((counts.sum(0) > 0).sum()) == 1,
    one_class_hint=f" Pixels with the value {VOID} do not count; save the foreground as 1.",
    auto_task="semantic-segmentation",
    inferred_note=(
        f"Labels are a class for each pixel: task {SEGMENTATION}. Pixels of {IGNORED} or {VOID} do "
        "not count."
    ),
    metrics=METRICS,
    soft_loss=pixel_divergence,
    summary="one class per pixel",
)
